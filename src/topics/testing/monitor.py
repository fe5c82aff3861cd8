"""Monitor: rules that every call to a FakeDisk must keep, whatever the test is about.

1. No file is renamed while it has unsynced bytes: a name must never point at what a crash would take away.
2. Nothing but a temporary file is unlinked while any rename waits for its `sync_dir`: what replaces it must be durable
   first.
3. No gated waiter commits before its frame is in the stable bytes of a file with a stable name, and no other waiter
   before the kernel has its frame (`attach` to a store wraps every waiter to see this).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from topics.errors import TopicsError
from topics.storage.wal.frame import Frame


class MonitorViolation(AssertionError):
    """The product broke a rule that keeps its promises true across a crash."""


class Monitor:
    """Raises MonitorViolation at the call that breaks a rule; `holds` is that of the FakeDisk."""

    def __init__(self, holds: Callable[..., bool]) -> None:
        self._holds = holds

    def renaming(self, source: str, *, unsynced: bool) -> None:
        """Rule 1."""
        if unsynced:
            raise MonitorViolation(f"rename of {source} before its sync")

    def unlinking(self, path: str, renamed: Sequence[str]) -> None:
        """Rule 2; `renamed` are the names that a crash could take away again."""
        if renamed and not path.endswith(".tmp"):
            raise MonitorViolation(f"unlink of {path} while the rename to {renamed[0]} is not durable")

    def committing(self, frame: bytes, gated: bool) -> None:
        """Rule 3."""
        if not self._holds(frame, stable=gated):
            raise MonitorViolation(f"a waiter committed before its frame was {'synced' if gated else 'written'}")

    def attach(self, store: Any) -> None:
        """Watch every waiter of a started store."""
        for shard in store.shards:
            shard.submit = partial(self._submit, shard.submit)

    def _submit(self, submit: Callable[..., None], frame: Frame, gated: bool, waiter: Any = None) -> None:
        whole = frame if isinstance(frame, bytes) else b"".join(frame.parts)
        submit(frame, gated, _WatchedWaiter(self, whole, gated, waiter))


class _WatchedWaiter:
    """A waiter that asks the monitor before it commits."""

    def __init__(self, monitor: Monitor, frame: bytes, gated: bool, waiter: Any) -> None:
        self._monitor = monitor
        self._frame = frame
        self._gated = gated
        self._waiter = waiter

    def commit(self, write_ns: int, sync_ns: int) -> None:
        self._monitor.committing(self._frame, self._gated)
        if self._waiter is not None:
            self._waiter.commit(write_ns, sync_ns)

    def fail(self, error: TopicsError) -> None:
        if self._waiter is not None:
            self._waiter.fail(error)
