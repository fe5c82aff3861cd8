"""Keys for those who write little, numbers for those who write much, and never two writes under one identity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.client.errors import Unreachable
from topics.client.operations import identity
from topics.client.operations.call import Patience
from topics.client.operations.identity import Identities, Lanes
from topics.client.operations.operation import Pause
from topics.client.operations.write import WriteOptions, write
from topics.client.transport.answer import Answer
from topics.client.transport.request import Request
from topics.errors import Throttled

WRITTEN = Answer(
    200,
    {},
    b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false}',
)


def throttled(limit: str) -> Answer:
    return Answer(429, {}, b'{"error":{"code":"throttled","message":"no","detail":{"limit":"%b"}}}' % limit.encode())


class Writing:
    """One write, step by step."""

    def __init__(self, lanes: Lanes, **options: Any) -> None:
        self._operation = write(b"/t", [b'{"data":1}'], Patience(), WriteOptions(**options), lanes)
        self._request = next(self._operation)

    @property
    def sent(self) -> dict[str, Any]:
        assert isinstance(self._request, Request)
        body: dict[str, Any] = msgspec.json.decode(self._request.body or b"")
        assert body.pop("records") == [{"data": 1}]
        return body

    def answered(self, answer: Answer | Exception) -> None:
        try:
            step = self._operation.throw(answer) if isinstance(answer, Exception) else self._operation.send(answer)
            if isinstance(step, Pause):
                self._request = next(self._operation)
        except StopIteration:
            pass


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "KEYED_WRITES", 3)


def heavy() -> Lanes:
    """Lanes that give numbers."""
    lanes = Lanes()
    for _ in range(4):
        assert lanes.take() is None
    return lanes


def test_a_client_that_writes_much_numbers_its_writes() -> None:
    """CLIENT-9."""
    lanes = Lanes()
    seen = []
    for _ in range(7):
        writing = Writing(lanes, create=False)
        seen.append(writing.sent)
        writing.answered(WRITTEN)
    keys = [each["idempotency_key"] for each in seen if "idempotency_key" in each]
    assert len(keys) == len(set(keys)) == 4
    assert [each["producer_seq"] for each in seen[4:]] == [1, 2, 3]
    assert len({each["producer_id"] for each in seen[4:]}) == 1
    assert all(each["create"] is False for each in seen)


def test_writes_at_the_same_time_have_producers_of_their_own() -> None:
    """CLIENT-9: numbers of one producer must arrive in order."""
    lanes = heavy()
    writings = [Writing(lanes) for _ in range(3)]
    assert len({writing.sent["producer_id"] for writing in writings}) == 3
    writings[1].answered(WRITTEN)
    after = Writing(lanes).sent
    assert after["producer_id"] == writings[1].sent["producer_id"]
    assert after["producer_seq"] == 2


def test_a_retry_keeps_its_identity_and_a_number_is_used_once() -> None:
    """CLIENT-9."""
    lanes = heavy()
    writing = Writing(lanes)
    first = writing.sent
    writing.answered(Unreachable("gone", sent=True))
    assert writing.sent == first
    writing.answered(throttled("max_producers_per_topic"))
    assert writing.sent == first
    writing.answered(WRITTEN)

    lanes = heavy()
    given_up = Writing(lanes)
    number = given_up.sent["producer_seq"]
    given_up._operation.close()
    assert Writing(lanes).sent["producer_seq"] == number + 1


def test_a_server_decides_between_keys_and_numbers() -> None:
    """CLIENT-9."""
    lanes = Lanes()
    first = Writing(lanes)
    first.answered(throttled("max_dedupe_bytes"))
    assert "idempotency_key" in first.sent, "a write keeps the identity that it began with"
    second = Writing(lanes)
    assert "producer_id" in second.sent
    second.answered(throttled("max_producers_per_topic"))
    for _ in range(10):
        writing = Writing(lanes)
        assert "idempotency_key" in writing.sent
        writing.answered(WRITTEN)
    lanes.noticed(Throttled(limit="max_dedupe_bytes"))
    assert lanes.take() is None


def test_a_key_of_ones_own_and_none_are_left_alone() -> None:
    lanes = heavy()
    assert Writing(lanes, idempotency_key="mine").sent == {"idempotency_key": "mine"}
    assert Writing(lanes, idempotency_key=None).sent == {"idempotency_key": None}


def test_topics_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "TOPICS_MAX", 2)
    identities = Identities()
    assert identities.of("a") is identities.of("a")
    for n in range(10):
        identities.of(str(n))
    assert len(identities._lanes) <= 2
