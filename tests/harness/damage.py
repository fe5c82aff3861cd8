"""What disks and people do to the files of a data directory, each as an act on a FakeDisk.

An act chooses by dice where it does its damage and says what it did (`Act`), or gives None where there was nothing to
do it to. What a start may do about it, the act says too: see tests.harness.vandal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.harness.machine import DIRECTORY
from tests.harness.world import COLD
from topics.storage.segment import format as segment
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan
from topics.storage.wal.file import read_used
from topics.testing.fake_disk import FakeDisk

SECTOR_BYTES: Final = 512
# The ids of the topics that neither a router nor a queue writes to: tests.harness.vandal creates them first.
PLAIN_TOPIC_ID_MAX: Final = 4


@dataclass
class Act:
    """What was done, for the judge."""

    what: str
    # The end of the log is gone, and nothing is left that could tell.
    takes_end: bool = False
    # The start may be refused, with a message that says what to do.
    may_refuse: bool = False
    # The cold store is out of reach: reads may report that, and nothing is lost.
    takes_cold: bool = False
    # Deleted records may be back: their flags, or the frame of the delete, were hit.
    hits_deletes: bool = True


def _used(content: bytes) -> int:
    return len(content.rstrip(b"\0"))


def _files(disk: FakeDisk, *kinds: str) -> list[str]:
    """The files that hold something, by their endings."""
    ends = kinds or (".wal", ".snap", ".data", ".idx", ".flags")
    return sorted(path for path, content in disk.files().items() if path.endswith(ends) and _used(content) > 64)


def _last_wals(disk: FakeDisk) -> set[str]:
    """The files of the last generation: only the next start would have noted how far the log went in them."""
    names = {path: walfile.parse_name(path.rpartition("/")[2]) for path in _files(disk, ".wal")}
    last = max((name.generation for name in names.values() if name is not None), default=0)
    return {path for path, name in names.items() if name is not None and name.generation == last}


def _put(disk: FakeDisk, path: str, content: bytes) -> None:
    """Have a file hold this, durably."""
    if disk.exists(path):
        disk.unlink(path)
    handle = disk.create(path)
    disk.write(handle, 0, content)
    disk.sync(handle)
    disk.close(handle)
    disk.sync_dir(path.rpartition("/")[0])


def _remove(disk: FakeDisk, path: str) -> None:
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0])


def _frames(disk: FakeDisk, path: str) -> list[scan.Entry]:
    handle = disk.open(path)
    data, used, _ = read_used(disk, handle)
    disk.close(handle)
    return [found for found in scan.walk(data, 64, used, torn_allowed=False) if isinstance(found, scan.Entry)]


def flip_one(disk: FakeDisk, rng: random.Random) -> Act | None:
    """One byte, anywhere."""
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    at = rng.randrange(_used(content))
    disk.damage(path, at, bytes([content[at] ^ (1 << rng.randrange(8))]))
    return Act(f"flipped {path} at {at}")


def flip_two(disk: FakeDisk, rng: random.Random) -> Act | None:
    """Two bytes, anywhere, near each other or not. Both may hit the last frame, and take its name and its content."""
    first = flip_one(disk, rng)
    assert first is not None
    if rng.random() < 0.5:
        second = flip_one(disk, rng)
        assert second is not None
        return Act(f"{first.what}, {second.what}", takes_end=_end_hit(disk, first.what, second.what))
    path, _, at = first.what.removeprefix("flipped ").rpartition(" at ")
    content = disk.files()[path]
    near = min(_used(content) - 1, int(at) + rng.randrange(1, 200))
    disk.damage(path, near, bytes([content[near] ^ 0x40]))
    return Act(f"{first.what} and {near}", takes_end=path in _last_wals(disk) or path.endswith(".snap"))


def _end_hit(disk: FakeDisk, *whats: str) -> bool:
    paths = [what.removeprefix("flipped ").rpartition(" at ")[0] for what in whats]
    return paths[0] == paths[1] and (paths[0] in _last_wals(disk) or paths[0].endswith(".snap"))


def garble_sector(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A sector of noise."""
    # The one value that means deleted is left out: no checksum covers the flags.
    return _sector(disk, rng, rng.randbytes(SECTOR_BYTES).replace(b"\xd5", b"\xd4"), "garbled")


def zero_sector(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A sector of zeros."""
    return _sector(disk, rng, bytes(SECTOR_BYTES), "zeroed")


def _sector(disk: FakeDisk, rng: random.Random, noise: bytes, what: str) -> Act:
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    at = rng.randrange(_used(content)) // SECTOR_BYTES * SECTOR_BYTES
    length = min(SECTOR_BYTES, len(content) - at)
    # A sector holds whole frames, and which topics had their last one there cannot be known. It may be all that a file
    # holds: then the file looks like one that was never used.
    takes_end = path in _last_wals(disk) or path.endswith(".snap")
    disk.damage(path, at, noise[:length])
    return Act(f"{what} {path} at {at}", takes_end=takes_end, may_refuse=path.endswith(".snap"))


def cut(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file cut short."""
    path = rng.choice(_files(disk))
    content = disk.files()[path]
    # A snapshot that loses its routers loses what only they can derive.
    ends = path in _last_wals(disk) or path.endswith(".snap")
    _put(disk, path, content[: rng.randrange(_used(content))])
    return Act(f"cut {path}", takes_end=ends, may_refuse=path.endswith(".snap"))


def empty(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file with nothing in it."""
    path = rng.choice(_files(disk))
    ends = path in _last_wals(disk)
    _put(disk, path, b"")
    return Act(f"emptied {path}", takes_end=ends, may_refuse=path.endswith(".snap"))


def remove(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file gone."""
    path = rng.choice(_files(disk))
    ends = path in _last_wals(disk)
    _remove(disk, path)
    # A cold store without a single file is taken for one that is not mounted.
    away = path.startswith(f"{COLD}/") and not any(other.startswith(f"{COLD}/") for other in disk.files())
    return Act(f"removed {path}", takes_end=ends, may_refuse=path.endswith(".snap") or ends, takes_cold=away)


def lose_checkpoint(disk: FakeDisk, rng: random.Random) -> Act | None:
    """The checkpoint gone, or with nothing in it."""
    paths = _files(disk, ".snap")
    if not paths:
        return None
    path = rng.choice(paths)
    if rng.random() < 0.5:
        _remove(disk, path)
    else:
        _put(disk, path, b"")
    return Act(f"lost {path}", may_refuse=True)


def remove_first_wal(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file of the log gone, with others after it."""
    older = [path for path in _files(disk, ".wal") if path not in _last_wals(disk)]
    if not older:
        return None
    path = rng.choice(older)
    _remove(disk, path)
    return Act(f"removed {path}", may_refuse=not _files(disk, ".snap"))


def swap(disk: FakeDisk, rng: random.Random) -> Act | None:
    """The file of another: of another topic, of another place in the log."""
    kind = rng.choice((".wal", ".data", ".idx", ".flags"))
    paths = _files(disk, kind)
    if len(paths) < 2:
        return None
    source, target = rng.sample(paths, 2)
    ends = target in _last_wals(disk)
    _put(disk, target, disk.files()[source])
    return Act(f"copied {source} over {target}", takes_end=ends)


def duplicate(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A file there twice, under a name that is free."""
    path = rng.choice(_files(disk))
    directory, _, name = path.rpartition("/")
    wal, sealed, number = walfile.parse_name(name), segment.parse_name(name), snapshot.parse_name(name)
    if wal is not None:
        other = str(wal._replace(number=wal.number + rng.randrange(1, 4)))
    elif sealed is not None:
        other = f"{sealed[0].topic_id + rng.randrange(2):016x}-{sealed[0].first_seq + 3:016x}.{sealed[1]}"
    else:
        assert number is not None
        other = f"snapshot-{number + 1:016x}.snap"
    if disk.exists(f"{directory}/{other}"):
        return None
    _put(disk, f"{directory}/{other}", disk.files()[path])
    return Act(f"copied {path} to {other}", hits_deletes=False)


def flip_both_copies(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A byte in each copy of something that is there twice."""
    twice: list[tuple[str, list[scan.Entry]]] = []
    for path in _files(disk, ".wal", ".snap"):
        copies: dict[tuple[int, int, int], list[scan.Entry]] = {}
        for entry in _frames(disk, path):
            if entry.kind in (frame.CREATE, frame.LOST) or entry.kind >= snapshot.TOPIC:
                copies.setdefault((entry.kind, entry.topic_id, entry.first_seq), []).append(entry)
        twice += [(path, found) for found in copies.values() if len(found) == 2 and found[0].kind != frame.VOID]
    if not twice:
        return None
    path, found = rng.choice(twice)
    content = disk.files()[path]
    for entry in found:
        at = entry.at - 48 + rng.randrange(48 + entry.length)
        disk.damage(path, at, bytes([content[at] ^ 0x04]))
    kind, topic_id = found[0].kind, found[0].topic_id
    # How far a router was, and what it would have copied, is lost with the state of either end.
    routed = kind not in (frame.CREATE, snapshot.TOPIC) or topic_id > PLAIN_TOPIC_ID_MAX
    return Act(f"flipped both copies of kind {kind}, topic {topic_id} in {path}", takes_end=routed)


def unmount_cold(disk: FakeDisk, rng: random.Random) -> Act | None:
    """The cold store is not there."""
    gone = [path for path in disk.files() if path.startswith(f"{COLD}/")]
    for path in gone:
        _remove(disk, path)
    return Act("removed the cold store", takes_cold=True) if gone else None


def remove_quarantine(disk: FakeDisk, rng: random.Random) -> Act | None:
    """A flipped byte, and something in the place where its copy is to go."""
    done = flip_one(disk, rng)
    assert done is not None
    path = done.what.removeprefix("flipped ").partition(" at ")[0].rpartition("/")[2]
    _put(disk, f"{DIRECTORY}/quarantine/{path}-0-40.bin", b"")
    return done


ACTS: Final = (
    flip_one,
    flip_two,
    garble_sector,
    zero_sector,
    cut,
    empty,
    remove,
    lose_checkpoint,
    remove_first_wal,
    swap,
    duplicate,
    flip_both_copies,
    remove_quarantine,
    unmount_cold,
)
