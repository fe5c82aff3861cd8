"""FakeDisk: a disk in memory that can lose what was not synced.

It keeps two versions of every file and every directory: what the kernel has, and what is on stable storage. A crash of
the process (`kill`) loses neither; a loss of power keeps the stable version and whatever the kind of damage leaves of
the rest, sector by sector:

    dropped   nothing that was not synced is there
    torn      of what was not synced, each sector is there or not
    garbled   of what was not synced, each sector is there, not there, or noise

Bytes that were synced are never damaged by a crash: a sector write is old or new, and a rewrite of part of a sector
leaves the rest of it alone. Names behave alike: of the creations, renames and removals since the last `sync_dir`, a
loss of power keeps the first few, in order, as a journal does.

Every mutating call is counted, and `after_call` sees each one, so a sweep can fork the disk (`clone`) at every point at
which the machine could have stopped. The `Monitor` is always on.
"""

# `Disk` says what each call does.
# ruff: noqa: D102

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Final, Literal

from topics.storage.disk import Locked
from topics.testing.monitor import Monitor

SECTOR_BYTES: Final = 512
Damage = Literal["kill", "dropped", "torn", "garbled"]
_HOLDER: Final = '{"pid": 1, "host": "fake"}'
DAMAGES: Final[tuple[Damage, ...]] = ("kill", "dropped", "torn", "garbled")


class Crashed(BaseException):
    """The machine has stopped: no call goes through until `crash` restarts it. No `except Exception` catches it."""


class _Inode:
    """One file: the kernel's bytes, the stable bytes, and the writes between the two."""

    __slots__ = ("content", "pending", "stable")

    def __init__(self) -> None:
        self.content = bytearray()
        self.stable = bytearray()
        # (offset, bytes) of each unsynced write in order; (length, None) for a change of length.
        self.pending: list[tuple[int, bytes | None]] = []

    def clone(self) -> _Inode:
        twin = _Inode()
        twin.content = bytearray(self.content)
        twin.stable = bytearray(self.stable)
        twin.pending = list(self.pending)
        return twin

    def after(self, damage: Damage, rng: random.Random) -> bytearray:
        """The bytes that a loss of power leaves."""
        left = bytearray(self.stable)
        if damage == "dropped":
            return left
        for at, data in self.pending:
            if data is None:
                if rng.random() < 0.5:
                    _resize(left, at)
                continue
            start = at
            while start < at + len(data):
                end = min(at + len(data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                fate = rng.randrange(3 if damage == "garbled" else 2)
                if fate == 1:
                    _put(left, start, data[start - at : end - at])
                elif fate == 2:
                    _put(left, start, rng.randbytes(end - start))
                start = end
        return left


class _NameChange:
    """A name that was given (to a new file, or moved from `source`) or, with no inode, taken away."""

    __slots__ = ("inode", "name", "source")

    def __init__(self, name: str, inode: _Inode | None, source: str | None = None) -> None:
        self.name = name
        self.inode = inode
        self.source = source

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.inode is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.inode


def _resize(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))


def _put(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at + len(data):
        _resize(content, at + len(data))
    content[at : at + len(data)] = data


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class FakeDisk:
    """A disk in memory that can crash. Use from one thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.crash_at: int | None = None
        self.after_call: Callable[[int, str, str], None] | None = None
        self.free = 1 << 40
        self.boot = 1
        self.uncached: set[str] = set()
        self.unreachable: set[str] = set()
        self.pending_names: list[_NameChange] = []
        self.monitor = Monitor(self.holds)
        self._names: dict[str, _Inode] = {}
        self._stable_names: dict[str, _Inode] = {}
        self._dirs: set[str] = {""}
        self._handles: dict[int, tuple[str, _Inode, bool]] = {}
        self._next_handle = 3
        self._locks: dict[str, int] = {}
        self._down = False

    def clone(self) -> FakeDisk:
        """An independent copy of everything on the disk, with nothing open."""
        twin = FakeDisk()
        twin.free, twin.boot = self.free, self.boot
        changed = [change.inode for change in self.pending_names if change.inode is not None]
        inodes = {id(inode): inode.clone() for inode in (*self._names.values(), *self._stable_names.values(), *changed)}
        twin._names = {path: inodes[id(inode)] for path, inode in self._names.items()}
        twin._stable_names = {path: inodes[id(inode)] for path, inode in self._stable_names.items()}
        twin.pending_names = [
            _NameChange(change.name, change.inode and inodes[id(change.inode)], change.source)
            for change in self.pending_names
        ]
        twin._dirs = set(self._dirs)
        return twin

    def crash(self, damage: Damage, rng: random.Random) -> None:
        """Stop and start again: a kill keeps the kernel and its boot id, every other damage is a loss of power."""
        self._handles.clear()
        self._locks.clear()
        self._down = False
        self.crash_at = None
        if damage == "kill":
            return
        self.boot += 1
        self._lose_names(0 if damage == "dropped" else rng.randint(0, len(self.pending_names)))
        for inode in {id(inode): inode for inode in self._names.values()}.values():
            inode.content = inode.after(damage, rng)
            inode.stable = bytearray(inode.content)
            inode.pending.clear()

    def _lose_names(self, kept: int) -> None:
        """Of the pending changes of names, keep the first `kept` and take the rest back."""
        for change in self.pending_names[:kept]:
            change.apply(self._stable_names)
        self.pending_names.clear()
        self._names = dict(self._stable_names)

    def files(self) -> dict[str, bytes]:
        """What the kernel has: every name and its bytes."""
        return {path: bytes(inode.content) for path, inode in sorted(self._names.items())}

    def holds(self, frame: bytes, *, stable: bool) -> bool:
        """Whether some file holds these bytes, under a name and in bytes that are stable if asked so."""
        if stable:
            return any(frame in inode.stable for inode in self._stable_names.values())
        return any(frame in inode.content for inode in self._names.values())

    def damage(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes unnoticed, as a failing medium does."""
        inode = self._names[path]
        assert offset + len(data) <= len(inode.content)
        inode.content[offset : offset + len(data)] = data
        inode.stable[offset : offset + len(data)] = data

    def forget_dirty(self, handle: int) -> None:
        """What a kernel does after a failed sync: the pages stay readable and are clean now, but not on the disk."""
        self._handles[handle][1].pending.clear()

    def _reach(self, path: str = "") -> None:
        if self._down:
            raise Crashed
        if self.unreachable and any(path.startswith(prefix) for prefix in self.unreachable):
            raise OSError(errno.EHOSTDOWN, f"{path} cannot be reached")

    def _begin(self) -> None:
        self._reach()
        self.calls += 1

    def _end(self, operation: str, path: str) -> None:
        if self.after_call is not None:
            self.after_call(self.calls, operation, path)
        if self.calls == self.crash_at:
            self._down = True
            raise Crashed

    def _inode(self, handle: int) -> tuple[str, _Inode]:
        path, inode, _ = self._handles.get(handle, ("", None, False))
        self._reach(path)
        if inode is None:
            raise OSError(errno.EBADF, "the handle is closed")
        return path, inode

    def _give(self, path: str, inode: _Inode, writable: bool) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = (path, inode, writable)
        return handle

    def create(self, path: str) -> int:
        self._begin()
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "the name is taken", path)
        if _parent(path) not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        inode = self._names[path] = _Inode()
        self.pending_names.append(_NameChange(path, inode))
        handle = self._give(path, inode, True)
        self._end("create", path)
        return handle

    def open(self, path: str, *, writable: bool = False) -> int:
        self._reach(path)
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._give(path, inode, writable)

    def close(self, handle: int) -> None:
        self._reach()
        if self._handles.pop(handle, None) is None:
            raise OSError(errno.EBADF, "the handle is closed")

    def read(self, handle: int, offset: int, length: int) -> bytes:
        _, inode = self._inode(handle)
        return bytes(inode.content[offset : offset + length])

    def read_now(self, handle: int, offset: int, length: int) -> bytes | None:
        """As `read`; None for a path in `uncached`."""
        path, inode = self._inode(handle)
        return None if path in self.uncached else bytes(inode.content[offset : offset + length])

    def expect(self, handle: int, offset: int, length: int) -> None:
        """Nothing: all of it is in memory."""

    def write(self, handle: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._begin()
        path, inode = self._inode(handle)
        if not self._handles[handle][2]:
            raise OSError(errno.EBADF, "the handle is not writable")
        data = bytes(data)
        _put(inode.content, offset, data)
        inode.pending.append((offset, data))
        self._end("write", path)

    def write_parts(self, handle: int, offset: int, parts: Sequence[bytes]) -> None:
        self.write(handle, offset, b"".join(parts))

    def allocate(self, handle: int, length: int, *, zero_fill: bool, enough: Callable[[], bool] | None = None) -> None:
        """Reserve `length` bytes that read as zeros; stable with `zero_fill`, unless that is enough at once."""
        self._begin()
        path, inode = self._inode(handle)
        _resize(inode.content, max(length, len(inode.content)))
        if zero_fill and not (enough is not None and enough()):
            inode.stable = bytearray(inode.content)
            inode.pending.clear()
        else:
            inode.pending.append((length, None))
        self._end("allocate", path)

    def size(self, handle: int) -> int:
        return len(self._inode(handle)[1].content)

    def sync(self, handle: int) -> None:
        self._begin()
        path, inode = self._inode(handle)
        for at, data in inode.pending:
            if data is None:
                _resize(inode.stable, at)
            else:
                _put(inode.stable, at, data)
        inode.pending.clear()
        self._end("sync", path)

    def rename(self, source: str, target: str) -> None:
        self._begin()
        inode = self._names.get(source)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        assert _parent(source) == _parent(target), "a rename stays within its directory"
        self.monitor.renaming(source, unsynced=bool(inode.pending))
        del self._names[source]
        self._names[target] = inode
        self.pending_names.append(_NameChange(target, inode, source))
        self._end("rename", target)

    def unlink(self, path: str) -> None:
        self._begin()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.monitor.unlinking(path, [change.name for change in self.pending_names if change.source is not None])
        del self._names[path]
        self.pending_names.append(_NameChange(path, None))
        self._end("unlink", path)

    def list(self, directory: str) -> list[str]:
        self._reach(directory)
        return sorted(path[len(directory) + 1 :] for path in self._names if _parent(path) == directory)

    def exists(self, path: str) -> bool:
        self._reach()
        return path in self._names or path in self._dirs

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents where missing; durable at once, to keep the model small."""
        self._begin()
        while path and path not in self._dirs:
            self._dirs.add(path)
            path = _parent(path)
        self._end("make_dir", path)

    def sync_dir(self, path: str) -> None:
        self._begin()
        kept = []
        for change in self.pending_names:
            if _parent(change.name) == path:
                change.apply(self._stable_names)
            else:
                kept.append(change)
        self.pending_names = kept
        self._end("sync_dir", path)

    def free_bytes(self, path: str) -> int:
        """What `free` says."""
        return self.free

    def lock(self, path: str) -> int:
        self._reach()
        if path in self._locks:
            raise Locked(path, _HOLDER)
        handle = self._give(path, _Inode(), True)
        self._locks[path] = handle
        return handle

    def holder(self, path: str) -> str | None:
        return _HOLDER if path in self._locks else None

    def unlock(self, handle: int) -> None:
        path, _, _ = self._handles.pop(handle)
        self._locks.pop(path, None)

    def boot_id(self) -> str:
        """Changes with every loss of power."""
        return f"boot-{self.boot}"
