"""The epochs in a stream's ids, and where a session is when a stream ends (WATCH-18)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.harness.events import read_id
from topics.engine.log.difference import Tombstone
from topics.server.auth import Keys
from topics.server.delivery import notice as notices
from topics.server.delivery.composite import Layout, Position
from topics.server.delivery.sse import SseStream
from topics.server.delivery.subscriber import Feed

BEGAN = [7, 8]


class Pipe:
    """A stream whose client reads, or does not."""

    def __init__(self) -> None:
        self.buffered = 0
        self.untaken = False
        self.sink = SimpleNamespace(write_paused=False, transport=None)
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def opened(pipe: Pipe, cursors: list[int]) -> SseStream:
    delivery = SimpleNamespace(tick_ms=0, now_ms=0, enrol=lambda *_: None, join=lambda _: None)
    anyone = Keys().anyone
    stream = SseStream(cast("Any", delivery), cast("Any", pipe), Layout(["a", "b"]), {}, anyone, 1000, lambda _: None)
    stream.open([Feed(stream, i, cursor, cast("Any", None)) for i, cursor in enumerate(cursors)])
    return stream


def told_of_a_recreate(stream: SseStream, pipe: Pipe) -> Any:
    """The id of the tombstone that says that the first topic is another one."""
    lost = Tombstone(1, 5, "recreated", 1, 5)
    stream.send(stream.feeds()[0], notices.tombstone(b"a", lost))
    line = pipe.written[-1].split(b"\n")[0]
    return read_id(line.removeprefix(b"id: ").decode())


def test_id_speaks_of_the_topic_that_is_there() -> None:
    """WATCH-18: an epoch is named where it is not the one the session began with, and only there."""
    pipe = Pipe()
    stream = opened(pipe, [3, 4])
    stream.enter(0, 9, BEGAN[0])
    assert told_of_a_recreate(stream, pipe) == {"a": 0, "b": 4, "$epoch": {"a": 9}}
    stream = opened(pipe, [3, 4])
    stream.epochs = {0: 2}
    stream.enter(0, BEGAN[0], BEGAN[0])
    assert told_of_a_recreate(stream, pipe) == {"a": 0, "b": 4}


def test_recreate_that_was_not_received_leaves_the_session_in_the_old_topic() -> None:
    """WATCH-18: an old seq in the new epoch would be a position that skips records in silence."""
    pipe = Pipe()
    stream = opened(pipe, [3, 4])
    stream.enter(0, 9, BEGAN[0])
    told_of_a_recreate(stream, pipe)
    assert stream.received(BEGAN) == [Position(0, 9), Position(4, 8)]
    pipe.untaken = True
    assert stream.received(BEGAN) == [Position(3, 7), Position(4, 8)]
