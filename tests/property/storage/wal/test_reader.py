"""The log is read by column where one-record appends stand in a row, and frame by frame elsewhere.

Which of the two is a matter of speed alone: what a restart finds must not depend on it, nor on how much of a file is
read at a time. So every log here is recovered in each way, whole and damaged, and the outcomes are compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.harness.storage import DIRECTORY
from topics.storage import block, history
from topics.storage.history import History, Started
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, singles
from topics.storage.wal.file import WalName
from topics.storage.wal.reader import RUN_RECORDS_MAX, Appended, Control, ShardReader
from topics.testing.fake_disk import FakeDisk

NEVER = 1 << 60
# What counts as singles (frames in a row, and of one topic), and how many bytes are read at a time.
WAYS = {
    "frame by frame": (NEVER, 1, 1 << 18),
    "by column": (1, 1, 1 << 18),
    "by column where it pays": (singles.FRAMES_MIN, singles.TOPIC_FRAMES_MIN, history.WINDOW_BYTES),
    "by column in small windows": (3, 1, 700),
    "frame by frame in small windows": (NEVER, 1, 300),
}
FILE_BYTES = 1 << 19


@dataclasses.dataclass
class Shape:
    """What one-record appends look like."""

    topic_id: int
    data_bytes: int = 60
    node: bytes | None = None
    tag: bytes | None = None
    meta: bytes | None = None
    extra: bytes = b""
    jump: int = 0


class Log:
    """Frames as a shard writes them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._lsn = 0
        self._seqs: dict[int, int] = {}

    def next_lsn(self) -> int:
        self._lsn += 1
        return self._lsn

    def append(self, shape: Shape, n: int = 1) -> None:
        first = self._seqs.get(shape.topic_id, 1) + shape.jump
        self._seqs[shape.topic_id] = first + n
        datas = [(b'"%d.%d.' % (first + i, shape.topic_id)).ljust(shape.data_bytes, b"x") for i in range(n)]
        columns = [None if text is None else [text] * n for text in (shape.node, shape.tag, shape.meta)]
        made = block.encode(shape.topic_id, first, first * 7, datas, *columns)
        self.frames.append(frame.append(self.next_lsn(), shape.topic_id, first, n, made.raw, shape.extra))

    def other(self, topic_id: int) -> None:
        """A frame that is an append in everything but its kind."""
        made = block.encode(topic_id, 1, 1, [b"1"])
        self.frames.append(frame.encode(200, self.next_lsn(), topic_id, made.raw, n=1, first_seq=1))

    def control(self, kind: int, topic_id: int, payload: Any) -> None:
        self.frames.append(frame.control(kind, self.next_lsn(), topic_id, payload))

    def void(self) -> None:
        self.frames.append(frame.void(bytes(80)))

    def disk(self) -> FakeDisk:
        disk = FakeDisk()
        for name in ("", "/wal", "/snapshots", "/quarantine"):
            disk.make_dir(DIRECTORY + name)
        boot = walfile.boot_digest(disk.boot_id())
        handle = walfile.create(disk, f"{DIRECTORY}/wal", WalName(1, 0, 1), boot, FILE_BYTES, zero_fill=True)
        disk.write(handle, walfile.HEADER_BYTES, b"".join(self.frames))
        disk.sync(handle)
        disk.close(handle)
        return disk


def plain(events: list[Any]) -> list[Any]:
    """Events as values, in an order that reader.py promises: between barriers, topic by topic."""
    parts: list[Any] = []
    topics: dict[int, list[Any]] = {}
    for event in events:
        if isinstance(event, Appended):
            topics.setdefault(event.topic_id, []).append((event.lsn, event.block.raw, event.extras))
        elif isinstance(event, Control) and event.topic_id and event.kind not in frame.STRUCTURAL:
            topics.setdefault(event.topic_id, []).append(event)
        else:
            parts += [sorted(topics.items()), event]
            topics = {}
    return [*parts, sorted(topics.items())]


def found(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, way: str) -> tuple[Any, ...]:
    """What a recovery of a copy of the disk yields, and leaves on disk."""
    frames_min, topic_frames_min, window_bytes = WAYS[way]
    monkeypatch.setattr(singles, "FRAMES_MIN", frames_min)
    monkeypatch.setattr(singles, "TOPIC_FRAMES_MIN", topic_frames_min)
    monkeypatch.setattr(history, "WINDOW_BYTES", window_bytes)
    twin = disk.clone()
    read = History(twin, *(f"{DIRECTORY}/{name}" for name in ("wal", "snapshots", "quarantine")))
    events = [event for event in read.events() if not isinstance(event, Started)]
    assert read.progress == 1.0
    return plain(events), read.last_lsn, read.frames, read.used_bytes, read.lost_power, twin.files()


def same_in_every_way(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    first, *others = (found(disk, monkeypatch, way) for way in WAYS)
    for way, other in zip(list(WAYS)[1:], others, strict=True):
        assert other == first, way
    events: list[Any] = first[0]
    return events


texts = st.sampled_from([None, b"", b"a", b'needs "escaping"', b"x" * 200])
shapes = st.builds(
    Shape,
    topic_id=st.integers(1, 3),
    data_bytes=st.sampled_from([20, 21, 60, 63, 64, 500, 4095, 4096, 4097, 6000]),
    node=texts,
    tag=texts,
    meta=st.sampled_from([None, b'{"k":"v"}']),
    extra=st.sampled_from([b"", b"", b"key", b"k" * 60]),
    jump=st.sampled_from([0, 0, 0, 5]),
)
steps = st.one_of(
    st.tuples(st.just("one"), st.lists(shapes, min_size=1, max_size=3), st.integers(1, 40)),
    st.tuples(st.just("many"), shapes, st.integers(2, 5)),
    st.sampled_from([("delete",), ("create",), ("heads",), ("void",), ("other",)]),
)


def written(drawn: list[Any]) -> Log:
    log = Log()
    for kind, *given_ in drawn:
        if kind == "one":
            for shape in given_[0] * given_[1]:
                log.append(shape)
        elif kind == "many":
            log.append(given_[0], given_[1])
        elif kind == "delete":
            log.control(frame.DELETE, 2, frame.Deletion(0, [(1, 1)], 1))
        elif kind == "create":
            log.control(frame.CREATE, 3, frame.Create("three", b"{}", 1))
        elif kind == "heads":
            log.control(frame.HEADS, 0, frame.Heads([(1, 1)]))
        elif kind == "other":
            log.other(1)
        else:
            log.void()
    return log


# A failure says enough as it is: to make it smaller would take minutes.
@settings(
    max_examples=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(steps, max_size=8), st.data())
def test_every_way_to_read_a_log_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, drawn: list[Any], data: st.DataObject
) -> None:
    """DURABLE-24: whole frames are taken, a bad one is reported and kept aside, a torn end is cut."""
    log = written(drawn)
    disk = log.disk()
    path = f"{DIRECTORY}/wal/{WalName(1, 0, 1)}"
    end = walfile.HEADER_BYTES + sum(map(len, log.frames))
    same_in_every_way(disk, monkeypatch)
    for _ in range(data.draw(st.integers(0, 2), "damages")):
        at = data.draw(st.integers(0, end - 1), "at")
        length = data.draw(st.sampled_from([1, 8, 200, end - at]), "length")
        damage = bytes(length) if length > 1 else bytes([disk.files()[path][at] ^ 0x10])
        disk.damage(path, at, damage)
        disk.boot += data.draw(st.integers(0, 1), "reboot")
        same_in_every_way(disk, monkeypatch)


@pytest.mark.parametrize("where", ["length", "checksum", "data", "header", "n", "kind"])
def test_a_bad_frame_among_singles_is_named_and_what_follows_is_kept(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A bad checksum with valid frames after it is corruption: reported and kept aside."""
    log = Log()
    for _ in range(300):
        log.append(Shape(1))
    disk = log.disk()
    at = walfile.HEADER_BYTES + sum(map(len, log.frames[:150]))
    offset = {"length": 8, "checksum": len(log.frames[150]) - 1, "data": 120, "header": 24, "n": 12, "kind": 4}[where]
    path = f"{DIRECTORY}/wal/{WalName(1, 0, 1)}"
    disk.damage(path, at + offset, bytes([disk.files()[path][at + offset] ^ 0x01]))

    before, damaged, after = same_in_every_way(disk, monkeypatch)

    assert damaged.reason == "corrupt"
    assert damaged.quarantined
    assert [tuple(lost) for lost in damaged.lost] == [(1, 151, 1)]
    assert [block.decode(raw, with_flags=False)[0].n for _, raw, _ in before[0][1]] == [150]
    assert [block.decode(raw, with_flags=False)[0].first_seq for _, raw, _ in after[0][1]] == [152]


def test_singles_are_gathered_into_blocks_of_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    for i in range(2 * RUN_RECORDS_MAX + 5):
        log.append(Shape(1 + i % 2, tag=b"t" if i % 600 < 300 else None, extra=b"k" if i % 7 == 0 else b""))

    (topics,) = same_in_every_way(log.disk(), monkeypatch)

    assert [[block.decode(raw, with_flags=False)[0].n for _, raw, _ in events] for _, events in topics] == [
        [RUN_RECORDS_MAX, 3],
        [RUN_RECORDS_MAX, 2],
    ]
    extras = sorted(
        (extra.first_seq, topic_id) for topic_id, events in topics for *_, found in events for extra in found
    )
    assert len(extras) == len(range(0, 2 * RUN_RECORDS_MAX + 5, 7))


@pytest.mark.parametrize("skip_lsn", [0, 1, 37, 99, 100, 200])
@pytest.mark.parametrize("frames_min", [1, NEVER])
def test_what_a_checkpoint_holds_is_left_out(monkeypatch: pytest.MonkeyPatch, skip_lsn: int, frames_min: int) -> None:
    monkeypatch.setattr(singles, "FRAMES_MIN", frames_min)
    log = Log()
    for i in range(100):
        log.append(Shape(1 + i % 2))
    data = bytes(8) + b"".join(log.frames)
    reader = ShardReader({1: skip_lsn}, 20)

    events = [*reader.frames_in(data + bytes(200), 8, len(data)), *reader.finish()]

    assert len(data) in events
    seqs = {1: set(), 2: set()}  # type: dict[int, set[int]]
    for event in events:
        if isinstance(event, Appended):
            seqs[event.topic_id] |= set(range(event.block.first_seq, event.block.last_seq + 1))
    assert seqs[1] == {i // 2 + 1 for i in range(0, 100, 2) if i + 1 > skip_lsn}
    assert seqs[2] == {i // 2 + 1 for i in range(1, 100, 2) if i + 1 > 20}
    assert reader.last_lsn == 100
