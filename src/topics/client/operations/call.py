"""Call: one request until it is answered, refused, or its time is over.

What is sent again, and when:

- A connection that broke: if the request was not sent, or may be sent twice. One that had been open for a while and was
  closed by the server is replaced at once, without a pause.
- 408, 429, 502, 503 and 504: after the pause that the server asks for (`Retry-After`, or `retry_after_ms`), or else a
  pause that grows, with some chance in it so that many clients do not come back at the same moment.
- Nothing else: a refusal stays one.

Every pause is logged, and no call takes longer than its deadline.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from topics.client.errors import TimedOut, Unreachable, refusal
from topics.client.operations.operation import Operation, Pause
from topics.client.transport.answer import Answer
from topics.client.transport.request import Request
from topics.errors import TopicsError

RETRIED: Final = frozenset((408, 429, 502, 503, 504))
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
RETRY_AFTER_MAX_MS: Final = 60_000

log: Final = logging.getLogger("topics.client")


class Patience(NamedTuple):
    """How long to wait for a server: for each answer, and for all attempts of a call together, if it is retried."""

    timeout_s: float = 10.0
    deadline_s: float = 30.0
    retries: bool = True
    replaces: bool = True
    """Whether a connection that the server has closed is replaced without a word."""
    now: Callable[[], float] = monotonic


def call(
    request: Request,
    patience: Patience,
    *,
    also: frozenset[int] = frozenset(),
    noticed: Callable[[TopicsError], None] | None = None,
) -> Operation[Answer]:
    """The answer of a server that did what it was asked for.

    `also` are further statuses that are waited for, and `noticed` is called with each refusal that is.
    """
    now = patience.now
    until = request.until = now() + patience.deadline_s
    if request.timeout_s is None:
        request.timeout_s = patience.timeout_s
    failure: TopicsError | None = None
    while True:
        request.attempts = attempts = request.attempts + 1
        before, at_least_s = failure, 0.0
        try:
            answer: Answer = yield request
        except Unreachable as error:
            # What was left for the last attempt may be too little to connect: then the one before it tells more.
            cut_off = isinstance(error, TimedOut) and not error.sent and now() >= until
            failure = before if cut_off and before is not None else error
            if error.sent and not request.repeatable:
                raise
            if error.reused and attempts == 1 and patience.replaces:
                continue
        else:
            if answer.status < 300:
                return answer
            failure = refusal(answer.status, answer.body)
            if answer.status not in RETRIED and answer.status not in also:
                raise failure
            if answer.status in (502, 504) and not request.repeatable:
                raise failure
            failure.retry_after_ms = asked_ms(answer, failure)
            at_least_s = (failure.retry_after_ms or 0) / 1000
            if noticed is not None:
                noticed(failure)
        pause_s = pause_of(attempts, at_least_s)
        assert failure is not None
        if not patience.retries or now() + pause_s >= until:
            raise failure
        log.warning("%s: trying again in %.2f s: %s", request, pause_s, failure.message)
        yield Pause(pause_s)


def pause_of(attempts: int, at_least_s: float = 0.0) -> float:
    """How long to wait after so many attempts."""
    grown_s: float = min(PAUSE_FIRST_S * 2.0 ** min(attempts - 1, 16), PAUSE_MAX_S)
    return max(grown_s, at_least_s) * random.uniform(1.0, 1.3)  # noqa: S311


def asked_ms(answer: Answer, failure: TopicsError) -> int | None:
    """How long the server wants to be left alone."""
    if failure.retry_after_ms is not None:
        return min(failure.retry_after_ms, RETRY_AFTER_MAX_MS)
    text = answer.headers.get(b"retry-after", b"")
    return min(1000 * int(text[:9]), RETRY_AFTER_MAX_MS) if text.isdigit() else None
