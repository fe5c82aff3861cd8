"""A large Block is laid out before its place is known, and written from its parts: the bytes are those of any other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.harness.storage import Writer, open_store
from topics.storage import block
from topics.storage.disk import RealDisk
from topics.storage.wal import frame
from topics.testing.fake_disk import FakeDisk

DATAS = [b'"%d"' % i * (i + 1) for i in range(50)]
TAGS: list[bytes | None] = [None if i % 3 else b'"%d' % i for i in range(50)]
NODES: list[bytes | None] = [b"" if i % 7 else None for i in range(50)]
METAS: list[bytes | None] = [None if i % 2 else b'{"a":"%d"}' % i for i in range(50)]


@pytest.mark.parametrize("tags", [None, TAGS])
@pytest.mark.parametrize("nodes", [None, NODES])
@pytest.mark.parametrize("metas", [None, METAS])
def test_a_draft_is_the_block_that_encode_makes(
    tags: list[bytes | None] | None, nodes: list[bytes | None] | None, metas: list[bytes | None] | None
) -> None:
    """STORE-15: one format, whichever way a Block is made; and a second place does not change the first."""
    lengths = None if metas is None else [len(meta or b"") for meta in metas]
    draft = block.Draft(list(map(len, DATAS)), nodes, tags, lengths)
    draft.add(filter(None, metas or ()))
    for i in range(0, 50, 7):
        draft.add(DATAS[i : i + 7])
    made = draft.place(3, 1000, 77)
    expected = block.encode(3, 1000, 77, DATAS, nodes, tags, metas)
    assert (made.raw, made.n, made.first_seq, made.live_bytes) == (expected.raw, 50, 1000, expected.live_bytes)
    again = draft.place(4, 2000, 78)
    assert again.raw == block.encode(4, 2000, 78, DATAS, nodes, tags, metas).raw
    assert made.raw == expected.raw


@pytest.mark.parametrize("extra", [b"", b"123456789"])
def test_a_large_frame_has_the_bytes_of_a_small_one(monkeypatch: pytest.MonkeyPatch, extra: bytes) -> None:
    """STORE-15: parts or not, the same frame."""
    raw = block.encode(1, 1, 1, DATAS).raw
    small = frame.append(9, 1, 1, 50, raw, extra)
    monkeypatch.setattr(frame, "LARGE_BYTES", 100)
    large = frame.append(9, 1, 1, 50, raw, extra)
    assert isinstance(large, frame.LargeFrame)
    assert b"".join(large.parts) == small
    assert len(large) == len(small)
    assert (
        (frame.lsn_of(large), frame.kind_of(large)) == (9, frame.APPEND) == (frame.lsn_of(small), frame.kind_of(small))
    )


@pytest.mark.parametrize("damage", ["kill", "dropped"])
def test_large_frames_among_others_are_there_after_a_crash(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """DURABLE-8: written with the small ones of their turn, in their order, over as many files as they need."""
    monkeypatch.setattr(frame, "LARGE_BYTES", 1000)
    disk = FakeDisk()
    store, _ = open_store(disk, wal_file_bytes=20_000)
    writer = Writer(store)
    sizes = [1, 5000, 2, 3, 30_000, 4, 9000]
    tickets = [writer.append(1, [b"x" * size], gated=True) for size in sizes]
    writer.turn()
    assert all(ticket.committed is not None for ticket in tickets)
    disk.crash(damage, random.Random(1))  # type: ignore[arg-type]
    _, found = open_store(disk)
    assert [len(found.records[1][seq]) for seq in range(1, 8)] == sizes
    assert not found.damaged


def test_parts_are_written_as_one(tmp_path: Path) -> None:
    """A real disk writes parts one after the other, more of them than one call takes too."""
    disk = RealDisk()
    handle = disk.create(str(tmp_path / "a"))
    parts = [b"%d," % i for i in range(3000)]
    disk.write_parts(handle, 5, parts)
    assert disk.read(handle, 5, 100_000) == b"".join(parts)
    disk.close(handle)
