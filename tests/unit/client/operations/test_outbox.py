"""Batches, their numbers, and what becomes of those that cannot be written: without a socket and without a clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.client.answers import Written
from topics.client.errors import NotWritten, Unreachable
from topics.client.operations.call import Patience
from topics.client.operations.operation import Pause
from topics.client.operations.outbox import FAILURES_MAX, REFUSED_MAX, Outbox, Parcel, ProducerOptions
from topics.client.transport.answer import Answer
from topics.errors import BatchTooLarge, Conflict, InvalidRequest, TopicFull


class Desk:
    """An outbox with a clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 0.0
        self.outbox = Outbox(b"/t", Patience(), ProducerOptions(**options), lambda: self.now_s)

    def add(self, *texts: str) -> None:
        for text in texts:
            self.outbox.add(text.encode())

    def take(self) -> Parcel:
        parcel = self.outbox.take()
        assert parcel is not None
        return parcel

    def send(self, parcel: Parcel, *happens: Answer | Exception) -> list[dict[str, Any]]:
        """Send a parcel, with what happens to each attempt; the bodies that went out."""
        operation = self.outbox.send(parcel)
        bodies = []
        effect = next(operation)
        for happening in happens:
            assert not isinstance(effect, Pause)
            body = msgspec.json.decode(effect.body)  # type: ignore[union-attr,arg-type]
            bodies.append({name: value for name, value in body.items() if value is not None})
            try:
                effect = operation.throw(happening) if isinstance(happening, Exception) else operation.send(happening)
                if isinstance(effect, Pause):
                    effect = operation.send(None)
            except StopIteration as done:
                self.outbox.arrived(parcel, done.value)
        return bodies


def written(count: int, last_seq: int, *, deduped: bool = False) -> Answer:
    fields = {
        "topic": "t", "first_seq": last_seq - count + 1, "last_seq": last_seq, "head_seq": last_seq, "count": count,
        "created": False, "deduped": deduped,
    }  # fmt: skip
    return Answer(200, {}, msgspec.json.encode(fields))


BROKEN = Unreachable("gone", sent=True)


def test_a_batch_goes_when_it_is_full_or_has_waited() -> None:
    """CLIENT-11."""
    desk = Desk(linger_ms=5, batch_records=3)
    assert desk.outbox.due_in_s is None
    desk.add("1")
    assert desk.outbox.due_in_s == 0.005
    desk.now_s = 0.004
    desk.add("2")
    assert desk.outbox.due_in_s == pytest.approx(0.001)
    desk.add("3", "4")
    assert desk.outbox.due_in_s == 0.0
    assert desk.take().texts == [b"1", b"2", b"3"]
    assert desk.take().texts == [b"4"]
    assert desk.outbox.take() is None


def test_batches_are_bounded_by_bytes_and_one_record_always_goes() -> None:
    desk = Desk(batch_bytes=10)
    desk.add("x" * 50, "y" * 6, "z" * 4, "w")
    assert [desk.take().texts for _ in range(3)] == [[b"x" * 50], [b"yyyyyy", b"zzzz"], [b"w"]]


def test_a_retry_has_the_number_and_the_records_of_the_first_attempt() -> None:
    """CLIENT-11: so that the server stores it once."""
    desk = Desk(producer_id="p")
    desk.add('{"data":1}', '{"data":2}')
    first, second = desk.send(desk.take(), BROKEN, written(2, 2, deduped=True))
    assert first == second == {"producer_id": "p", "producer_seq": 1, "records": [{"data": 1}, {"data": 2}]}
    desk.add('{"data":3}')
    [third] = desk.send(desk.take(), written(1, 3))
    assert third["producer_seq"] == 2
    assert (desk.outbox.written, desk.outbox.ended, desk.outbox.last_seq) == (3, 3, 3)


def test_a_server_that_takes_no_more_producers_gets_keys() -> None:
    """CLIENT-11."""
    desk = Desk(producer_id="p")
    desk.add('{"data":1}')
    full = Answer(
        429, {}, b'{"error":{"code":"throttled","message":"no","detail":{"limit":"max_producers_per_topic"}}}'
    )
    first, second, third = desk.send(desk.take(), full, BROKEN, written(1, 1, deduped=True))
    assert first["producer_seq"] == 1
    assert second == third == {"idempotency_key": "p-1", "records": [{"data": 1}]}
    desk.add('{"data":2}')
    [fourth] = desk.send(desk.take(), written(1, 2))
    assert fourth["idempotency_key"] == "p-2"
    assert desk.outbox.written == 2


def test_a_name_that_is_used_already_is_noticed() -> None:
    """CLIENT-11: records that the server dropped as a repeat of another's are not taken for written."""
    for happens in (
        (written(1, 9, deduped=True),),
        (BROKEN, written(2, 9, deduped=True)),
        (written(0, 0, deduped=True),),
    ):
        desk = Desk(producer_id="p")
        desk.add('{"data":1}')
        with pytest.raises(Conflict, match="first_seq"):
            desk.send(desk.take(), *happens)
        assert desk.outbox.written == 0


def test_the_buffer_is_bounded_until_writes_are_settled() -> None:
    desk = Desk(buffer_bytes=10)
    desk.add("111111")
    assert desk.outbox.has_room
    desk.add("222222")
    assert not desk.outbox.has_room
    parcel = desk.take()
    assert not desk.outbox.has_room
    desk.send(parcel, written(2, 2))
    assert desk.outbox.has_room


def test_a_batch_that_is_too_large_is_split_in_order_under_new_numbers() -> None:
    """CLIENT-11."""
    desk = Desk()
    desk.add(*(f'{{"data":{n}}}' for n in range(5)))
    parcel = desk.take()
    assert parcel.number == 1
    desk.outbox.refused(parcel, BatchTooLarge())
    desk.add('{"data":5}')
    parts = []
    part = desk.take()
    desk.outbox.refused(part, BatchTooLarge())
    while (part_ := desk.outbox.take()) is not None:
        parts.append(part_)
        desk.send(part_, written(len(part_.texts), 1))
    assert [text for part in parts for text in part.texts] == [f'{{"data":{n}}}'.encode() for n in range(6)]
    numbers = [part.number for part in parts]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 1
    assert desk.outbox.ended == desk.outbox.written == 6
    assert desk.outbox.failures == []


def test_a_refused_batch_is_raised_once_and_the_producer_goes_on() -> None:
    """CLIENT-12."""
    desk = Desk()
    desk.add("1", "2")
    desk.outbox.refused(desk.take(), InvalidRequest("no"))
    with pytest.raises(NotWritten, match="2 records were not written: no") as failed:
        desk.outbox.check()
    assert (failed.value.records, failed.value.maybe_written) == ([b"1", b"2"], 0)
    assert isinstance(failed.value.__cause__, InvalidRequest)
    desk.outbox.check()
    for _ in range(FAILURES_MAX + 5):
        desk.add("3")
        desk.outbox.refused(desk.take(), InvalidRequest("no"))
    assert len(desk.outbox.failures) == FAILURES_MAX
    assert desk.outbox.has_room


def bad_record(index: int) -> InvalidRequest:
    return InvalidRequest("no", field=f"records[{index}].tag")


def test_a_record_that_is_refused_is_left_out_and_the_others_are_written() -> None:
    """CLIENT-12."""
    desk = Desk()
    desk.add("1", "2", "3")
    desk.outbox.refused(desk.take(), bad_record(1))
    desk.add("4")
    assert not desk.outbox.dead
    rest = desk.take()
    assert (rest.texts, desk.take().texts) == ([b"1", b"3"], [b"4"])
    assert rest.number > 1
    with pytest.raises(NotWritten, match="1 record was not written: no") as failed:
        desk.outbox.check()
    assert failed.value.records == [b"2"]
    desk.outbox.arrived(rest, Written("t", 1, 2, 2, 2, False, False))
    assert (desk.outbox.ended, desk.outbox.written) == (3, 2)


def test_a_batch_of_nothing_but_bad_records_is_given_up() -> None:
    """CLIENT-12: it is not sent once for each of thousands of records."""
    desk = Desk()
    desk.add(*"0123456789" * 10)
    for _ in range(REFUSED_MAX):
        desk.outbox.refused(desk.take(), bad_record(0))
    desk.outbox.refused(desk.take(), bad_record(0))
    assert desk.outbox.take() is None
    assert (desk.outbox.ended, desk.outbox.due_in_s) == (100, None)
    assert desk.outbox.has_room


def test_a_server_that_stays_away_ends_the_producer() -> None:
    """CLIENT-12: to go on after records of which nobody knows whether they are stored would break the order."""
    desk = Desk(batch_records=2)
    desk.add("1", "2", "3", "4", "5")
    desk.outbox.refused(desk.take(), BROKEN)
    for _ in range(2):
        with pytest.raises(NotWritten, match="5 records were perhaps not written: gone") as failed:
            desk.outbox.check()
        assert (failed.value.records, failed.value.maybe_written) == ([b"1", b"2", b"3", b"4", b"5"], 2)
    assert desk.outbox.ended == 5


def test_a_full_topic_is_waited_for() -> None:
    desk = Desk()
    desk.add('{"data":1}')
    full = Answer(422, {}, b'{"error":{"code":"topic_full","message":"full"}}')
    assert len(desk.send(desk.take(), full, full, written(1, 1))) == 3
    assert TopicFull.status == 422
