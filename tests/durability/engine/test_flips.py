"""One flipped byte, at every place of every file: whatever is lost is reported, exactly, and everything else is there.

DURABLE-17: loss is always explicit, never silent. A data directory with something of everything is damaged
while it is closed, one byte at a time; then it must start, and a reader must get every record as it was written or a
tombstone in its place. A tombstone covers whole writes (or whole sealed Blocks), nothing is lost that the damaged place
did not hold, and the damage is counted wherever it cost something.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.harness.machine import Machine, numbers, small
from tests.harness.model import ModelRecord
from tests.harness.oracle import Broken, read_all
from tests.harness.world import World
from topics.engine import Diff
from topics.engine.restart.recovery import Recovery
from topics.storage.damage import Unusable
from topics.storage.wal import scan
from topics.testing.fake_disk import FakeDisk

BIT = 0x10
NAMES = ("kept", "common", "scratch")


class Written(NamedTuple):
    """A world at rest, what readers see in it, and which ranges of seqs are lost together."""

    world: World
    all_records: dict[str, dict[int, ModelRecord]]
    shown: dict[str, dict[int, ModelRecord]]
    heads: dict[str, int]
    together: dict[str, set[tuple[int, int]]]


@pytest.fixture(scope="module")
def written() -> Written:
    with small():
        world = World()
        for name, durability in (("kept", "fsync"), ("common", "disk"), ("scratch", "memory")):
            world.put(name, durability=durability, idempotency_window_ms=1000)
            for i in range(3):
                world.write(name, 5, tag=f"t{i}")
                world.run_until_idle()
        all_records = {name: read_all(world.engine, name)[0] for name in NAMES}
        world.delete("kept", tag="t1")
        world.checkpoint()
        for name in NAMES:
            world.write(name, 2, tag="u", key="k")
            world.run_until_idle()
        world.checkpoint()
        for name in NAMES:
            for n in (1, 3):
                world.write(name, n, tag="v")
                world.run_until_idle()
        world.put("late", durability="fsync", ttl_ms=12345)
        world.clock.advance(60)
        world.run_until_idle()
        shown = {name: read_all(world.engine, name)[0] for name in NAMES}
        for name in NAMES:
            all_records[name] |= shown[name]
        heads = {name: world.engine.topics[name].log.head for name in NAMES}
        # Three writes of five are one sealed segment, the write of two is in the checkpoint, the rest in the WAL.
        together = {name: {(1, 15), (16, 17), (18, 18), (19, 21)} for name in NAMES}
        together["kept"] |= {(1, 5), (11, 15)}
        assert {len(world.engine.topics[name].archive.segments) for name in NAMES} == {1}
        return Written(world, all_records, shown, heads, together)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


def places(disk: FakeDisk, stride: int) -> list[tuple[str, int]]:
    """Every so manyth byte of what is in use of each file."""
    found = []
    for path, content in disk.files().items():
        if path.endswith("LAYOUT"):
            # A directory that does not say what it is is refused, with a message that says so.
            continue
        used = len(content.rstrip(b"\0"))
        found += [(path, at) for at in range(0, used, stride)]
    return found


def check(written: Written, path: str, at: int) -> int:
    """Flip a byte and start; how many records it cost."""
    disk = written.world.disk.clone()
    disk.damage(path, at, bytes([disk.files()[path][at] ^ BIT]))
    disk.crash("kill", random.Random(0))
    try:
        _, engine, _ = written.world.boot(disk)
    except Unusable as refusal:
        raise Broken("one flipped byte is no reason to refuse a start") from refusal
    lost = 0
    for name in NAMES:
        if name not in engine.topics:
            raise Broken(f"topic {name} is gone")
        records, gaps = read_all(engine, name)
        shown, all_records = written.shown[name], written.all_records[name]
        # A damaged delete flag reads live (STORE-3), so what was deleted may be there again; nothing else may.
        if any(all_records.get(seq) != record for seq, record in records.items()):
            raise Broken(f"topic {name} delivers what was not written")
        said = {seq for first, last, _ in gaps for seq in range(first, last + 1)}
        missing = set(shown) - set(records)
        if not missing <= said:
            raise Broken(f"topic {name} lacks {sorted(missing - said)} and says nothing about it")
        head = written.heads[name]
        beyond = [gap for gap in gaps if gap[0] > head]
        for first, last, _ in gaps:
            if (first, last) not in written.together[name] and first <= head and missing:
                raise Broken(f"topic {name} lost {first} to {last}, which is no write")
        if engine.topics[name].next_seq <= head:
            raise Broken(f"topic {name} goes on at {engine.topics[name].next_seq}")
        if beyond and name == "kept":
            raise Broken(f"topic {name} says that it lost {beyond}, which was never written")
        lost += len(missing)
    if lost and not engine.totals.corruption_total:
        raise Broken(f"{lost} records are lost and no corruption is counted")
    if engine.topics["late"].config.ttl_ms != 12345:
        raise Broken("a config is lost")
    return lost


def sweep(written: Written, stride: int) -> tuple[int, int]:
    """How many flips there were, and how many cost records."""
    costly = 0
    found = places(written.world.disk, stride)
    for path, at in found:
        try:
            costly += bool(check(written, path, at))
        except BaseException as error:
            error.add_note(f"flipped {path} at {at}")
            raise
    return len(found), costly


def test_flipped_byte_anywhere_is_never_silence(written: Written) -> None:
    """DURABLE-17: counted, quarantined, reported as exactly the range that was lost, and all else readable."""
    flips, costly = sweep(written, stride=2)
    assert flips > 3000
    assert flips / 20 < costly < flips


def _swallows_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_damage", lambda self, event: None)
    monkeypatch.setattr(Recovery, "_lose", staticmethod(lambda *args: None))


def _truncates_behind_the_first_bad_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_next_whole", lambda *args: None)


def _trusts_damaged_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_named", lambda *args: ((), ()))


@pytest.mark.parametrize(
    "bug",
    [_swallows_damage, _truncates_behind_the_first_bad_frame, _trusts_damaged_frames],
    ids=lambda bug: bug.__name__.strip("_"),
)
def test_flips_find(
    bug: Callable[[pytest.MonkeyPatch], None], written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROOF-1: for each instrument a planted bug that it catches."""
    bug(monkeypatch)
    with pytest.raises(Broken):
        sweep(written, stride=11)


def test_sealed_block_that_is_damaged_is_reported_to_a_read_by_time() -> None:
    """DURABLE-17, READ-14: to find a time, the Block that it is in has to be read."""
    machine = Machine()
    for first in range(1, 101, 20):
        machine.engine.write("t", numbers(first, first + 19))
        machine.clock.advance(10)
    machine.checkpoint()
    machine.crash("kill")
    disk, topic = machine.disk, machine.engine.topics["t"]
    (sealed,) = topic.log.retained()
    assert sealed.first_ts < sealed.last_ts
    path = next(path for path in disk.files() if path.endswith(".data"))
    disk.damage(path, 200, bytes([disk.files()[path][200] ^ BIT]))
    found = machine.engine.diff("t", Diff(from_ts=sealed.last_ts))
    assert found.tombstone is not None
    assert (found.tombstone.gap_from, found.tombstone.gap_to, found.tombstone.reason) == (1, 100, "corruption")
    assert machine.engine.totals.corruption_total == 1


def test_sealed_block_that_is_damaged_is_reported_when_it_is_read(written: Written) -> None:
    """DURABLE-17: corruption in a sealed segment surfaces as a lost range with exactly its records."""
    disk = written.world.disk.clone()
    path = next(path for path in disk.files() if path.endswith(".data") and "0001-" in path)
    disk.damage(path, 200, bytes([disk.files()[path][200] ^ BIT]))
    disk.crash("kill", random.Random(0))
    _, engine, _ = written.world.boot(disk)
    records, gaps = read_all(engine, "kept")
    assert min(records) == 16
    assert [(first, last) for first, last, _ in gaps] == [(1, 15)]
    assert engine.totals.corruption_total == 1
    assert any("quarantine" in name for name in disk.files())
