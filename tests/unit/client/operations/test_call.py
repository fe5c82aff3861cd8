"""When a call is repeated, how long it waits, and when it gives up: without a socket and without a clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from topics.client.errors import BadAnswer, TimedOut, Unreachable
from topics.client.operations.call import Patience, call
from topics.client.operations.operation import Pause
from topics.client.transport.answer import Answer
from topics.client.transport.request import Request
from topics.errors import Internal, NotReady, ShuttingDown, Throttled, TopicFull, TopicsError

OK = Answer(200, {}, b"{}")


def refused(status: int, code: str, headers: dict[bytes, bytes] | None = None, detail: str = "{}") -> Answer:
    body = f'{{"error":{{"code":"{code}","message":"no","detail":{detail}}},"performance":{{}}}}'
    return Answer(status, headers or {}, body.encode())


class Stage:
    """Plays a server to one call: what happens to each attempt, in order. Time passes only in pauses and timeouts."""

    def __init__(self, *happens: Answer | Exception, takes_s: float = 0.0) -> None:
        self._happens = list(happens)
        self._takes_s = takes_s
        self.now_s = 100.0
        self.attempts = 0
        self.pauses: list[float] = []

    def run(self, *, repeatable: bool = True, **patience: Any) -> Answer:
        request = Request(b"POST", b"/x", b"{}", repeatable=repeatable)
        operation = call(request, Patience(now=lambda: self.now_s, **patience))
        step: Callable[[], Any] = lambda: next(operation)  # noqa: E731
        while True:
            try:
                effect = step()
            except StopIteration as done:
                answer: Answer = done.value
                return answer
            if isinstance(effect, Pause):
                self.pauses.append(effect.seconds)
                self.now_s += effect.seconds
                step = lambda: operation.send(None)  # noqa: E731
                continue
            assert effect is request
            self.attempts += 1
            self.now_s += self._takes_s
            happens = self._happens.pop(0) if len(self._happens) > 1 else self._happens[0]
            if isinstance(happens, Exception):
                step = lambda error=happens: operation.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda answer=happens: operation.send(answer)  # type: ignore[misc]  # noqa: E731


BROKEN = Unreachable("gone", sent=True)
STALE = Unreachable("gone", sent=True, reused=True)
NEVER_SENT = Unreachable("refused", sent=False)


def test_pauses_grow_and_are_bounded() -> None:
    """CLIENT-9."""
    stage = Stage(*[BROKEN] * 10, OK)
    assert stage.run(deadline_s=1_000) is OK
    assert stage.attempts == 11
    assert 0.05 <= stage.pauses[0] <= 0.065
    assert 0.1 <= stage.pauses[1] <= 0.13
    assert all(2.0 <= pause <= 2.6 for pause in stage.pauses[6:])


def test_pauses_of_many_clients_spread() -> None:
    random.seed(1)
    firsts = set()
    for _ in range(20):
        stage = Stage(BROKEN, OK)
        stage.run()
        firsts.add(round(stage.pauses[0], 4))
    assert len(firsts) > 10


@pytest.mark.parametrize("status", [408, 429, 503])
def test_what_the_server_asks_for_is_waited_for(status: int) -> None:
    """CLIENT-9: `retry_after_ms` is finer than the header, and comes first."""
    stage = Stage(refused(status, "throttled", {b"retry-after": b"3"}), OK)
    assert stage.run() is OK
    assert 3.0 <= stage.pauses[0] <= 3.9
    stage = Stage(refused(status, "throttled", {b"retry-after": b"3"}, '{"retry_after_ms":700}'), OK)
    assert stage.run() is OK
    assert 0.7 <= stage.pauses[0] <= 0.91


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (BROKEN, Unreachable), (refused(503, "not_ready"), NotReady), (refused(503, "shutting_down"), ShuttingDown),
        (refused(429, "throttled"), Throttled), (TimedOut("silent", sent=True), TimedOut),
    ],
)  # fmt: skip
def test_no_call_takes_longer_than_its_deadline(happens: Answer | Exception, expected: type[Exception]) -> None:
    """CLIENT-9: and the last failure is what is raised."""
    stage = Stage(happens)
    with pytest.raises(expected):
        stage.run(deadline_s=7.0)
    assert stage.attempts > 3
    assert stage.now_s - 100.0 < 7.0
    patient = Stage(refused(429, "throttled", {b"retry-after": b"50"}))
    with pytest.raises(Throttled):
        patient.run(deadline_s=7.0)
    assert patient.pauses == []


def test_an_attempt_that_the_deadline_cut_off_does_not_hide_why_those_before_it_failed() -> None:
    """CLIENT-9: what was left of the time may be too little to connect in."""
    stage = Stage(NEVER_SENT, TimedOut("silent"), takes_s=1.0)
    with pytest.raises(Unreachable, match="refused"):
        stage.run(deadline_s=2.0)
    assert stage.attempts == 2
    silent = Stage(NEVER_SENT, TimedOut("silent"), takes_s=1.0)
    with pytest.raises(TimedOut, match="silent"):
        silent.run(deadline_s=2.1)
    assert silent.attempts == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refused(422, "topic_full"), TopicFull), (refused(500, "internal"), Internal),
        (refused(418, "teapot"), TopicsError), (Answer(404, {}, b"<html>"), BadAnswer),
    ],
)  # fmt: skip
def test_other_refusals_are_raised_at_once(answer: Answer, expected: type[TopicsError]) -> None:
    stage = Stage(answer, OK)
    with pytest.raises(expected) as raised:
        stage.run()
    assert stage.attempts == 1
    assert raised.value.status == answer.status
    if answer.status == 418:
        assert raised.value.code == "teapot"


def test_a_connection_that_was_closed_while_it_rested_is_replaced_at_once() -> None:
    stage = Stage(STALE, OK)
    assert stage.run() is OK
    assert stage.pauses == []
    stage = Stage(STALE, STALE, OK)
    assert stage.run() is OK
    assert len(stage.pauses) == 1, "the second failure is no accident"


def test_what_may_not_be_sent_twice_is_not() -> None:
    """CLIENT-9."""
    for failure in (BROKEN, STALE):
        stage = Stage(failure, OK)
        with pytest.raises(Unreachable):
            stage.run(repeatable=False)
        assert stage.attempts == 1
    gateway = Stage(refused(504, "gateway"), OK)
    with pytest.raises(TopicsError):
        gateway.run(repeatable=False)
    for harmless in (NEVER_SENT, refused(503, "not_ready"), refused(429, "throttled")):
        stage = Stage(harmless, OK)
        assert stage.run(repeatable=False) is OK


def test_without_retries_the_first_failure_is_raised_but_a_stale_connection_is_replaced() -> None:
    stage = Stage(STALE, BROKEN, OK)
    with pytest.raises(Unreachable):
        stage.run(retries=False)
    assert stage.attempts == 2
