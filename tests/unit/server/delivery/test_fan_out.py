"""Large records to many streams: by bytes as well as by number, and what is not read is held once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.delivery import ManualDelivery, plain_view
from topics.engine import Delete, Write
from topics.server.auth import Keys
from topics.server.delivery.composite import Layout
from topics.server.delivery.delivery import SLICE_BYTES, SLICE_FEEDS, TIGHT_TIMEOUT_MS
from topics.server.delivery.sse import SseStream
from topics.server.delivery.subscriber import Feed
from topics.server.http.account import Account, Hold
from topics.server.http.stream import Stream

RECORD_BYTES = 200_000


@pytest.fixture
def manual() -> ManualDelivery:
    return ManualDelivery()


def large(manual: ManualDelivery) -> None:
    manual.engine.write("t", Write.of(["x" * RECORD_BYTES]))


class Pipe:
    """A sink that is full after its first large frame."""

    transport = None

    def __init__(self) -> None:
        self.written: list[bytes] = []

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self.written))

    @property
    def write_paused(self) -> bool:
        return self.unsent_bytes > 64 * 1024

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        pass


def sse(manual: ManualDelivery) -> tuple[SseStream, Pipe]:
    pipe = Pipe()
    opened = Stream(pipe, b"")
    opened.activate()
    pipe.written.clear()
    stream = SseStream(manual.delivery, opened, Layout(["t"]), {}, Keys().anyone, 15_000, lambda stream: None)
    feed = Feed(stream, 0, 1, plain_view())
    stream.open([feed])
    manual.delivery.follow(feed, manual.engine.topic("t"))
    return stream, pipe


def test_a_slice_writes_a_bounded_number_of_bytes(manual: ManualDelivery) -> None:
    """WATCH-32: what a slice leaves to the kernel is bounded, not only the number of its frames."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(SLICE_FEEDS)]
    manual.loop.run_until_idle()
    large(manual)
    before = 0
    while manual.loop.turn():
        served = sum(len(listener.seqs()) for listener in listeners)
        assert (served - before - 1) * RECORD_BYTES < SLICE_BYTES
        before = served
    assert before == SLICE_FEEDS


def test_streams_of_different_slices_get_the_same_frame(manual: ManualDelivery, monkeypatch: Any) -> None:
    """FAIR-5: one text for all of them, so that those that do not read share it."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(50)]
    manual.loop.run_until_idle()
    notices = []
    for listener in listeners:
        monkeypatch.setattr(type(listener), "send", lambda self, feed, notice: notices.append(notice))
    large(manual)
    for _ in range(5):
        manual.loop.turn()
    assert len(notices) > SLICE_BYTES // RECORD_BYTES, "more than one slice: the test shows what it says"
    assert len({id(notice) for notice in notices}) == 1


def test_a_delete_between_two_slices_shows_to_the_rest(manual: ManualDelivery) -> None:
    """WATCH-32: what was read for the first streams is not sent to the others once it is deleted."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(50)]
    manual.loop.run_until_idle()
    large(manual)
    manual.loop.turn()
    manual.loop.turn()
    served = sum(bool(listener.seqs()) for listener in listeners)
    assert 0 < served < 50
    manual.engine.delete("t", Delete(before_seq=3))
    manual.loop.run_until_idle()
    assert sum(bool(listener.seqs()) for listener in listeners) == served


def test_goodbyes_are_sliced_too(manual: ManualDelivery) -> None:
    """WATCH-32: the end of a topic with a thousand streams holds up nobody."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(1000)]
    manual.loop.run_until_idle()
    listeners[500].pause()
    manual.engine.delete_topic("t")
    before = 0
    while manual.loop.turn():
        told = sum("topic-deleted" in listener.kinds() for listener in listeners)
        assert told - before <= SLICE_FEEDS
        before = told
    assert before == 999
    listeners[500].resume()
    manual.loop.run_until_idle()
    assert "topic-deleted" in listeners[500].kinds()


def test_where_too_much_is_buffered_a_stream_has_a_second_to_read(manual: ManualDelivery) -> None:
    """FAIR-5."""
    manual.write("t")
    listener = manual.listener("t", 1)
    manual.loop.run_until_idle()
    listener.pause()
    manual.write("t")
    manual.pulse(10 * TIGHT_TIMEOUT_MS)
    assert not listener.given_up
    hold = Hold(manual.delivery.account)
    hold.set_answers(manual.delivery.account.max_bytes)
    manual.pulse(200)
    assert listener.given_up


def test_many_streams_that_do_not_read_are_looked_at_in_slices(manual: ManualDelivery) -> None:
    """WATCH-31: each is given up in its time, however many there are."""
    manual.write("t")
    listeners = [manual.listener("t", 1) for _ in range(300)]
    manual.loop.run_until_idle()
    for listener in listeners:
        listener.pause()
    manual.write("t")
    manual.pulse(29_000)
    assert not any(listener.given_up for listener in listeners)
    manual.pulse(2_000)
    assert all(listener.given_up for listener in listeners)


def test_what_streams_do_not_take_counts_once_and_is_given_back(manual: ManualDelivery) -> None:
    """FAIR-5."""
    manual.write("t")
    account: Account = manual.delivery.account
    streams = [sse(manual) for _ in range(20)]
    manual.loop.run_until_idle()
    large(manual)
    manual.loop.run_until_idle()
    assert all(pipe.write_paused for _, pipe in streams)
    assert RECORD_BYTES < account.streams_bytes < RECORD_BYTES + 1000
    for stream, pipe in streams[:10]:
        pipe.written.clear()
        stream.drained()
    assert account.streams_bytes > RECORD_BYTES
    for stream, _ in streams[10:]:
        manual.delivery.leave(stream)
    assert account.total_bytes == 0


def test_a_stream_that_ended_while_it_was_watched_is_left_alone(manual: ManualDelivery) -> None:
    """WATCH-31: it is looked at in a later slice, when it is gone."""
    manual.write("t")
    listener = manual.listener("t", 1)
    manual.loop.run_until_idle()
    listener.pause()
    manual.write("t")
    manual.pulse(29_000)
    manual.delivery._watched.append(listener)
    manual.delivery.leave(listener)
    manual.clock.advance(5_000)
    manual.pulse(100)
    assert not listener.given_up
