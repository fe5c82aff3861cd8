"""Backups: what a backup needs of a server that goes on serving (the BACKUP rules).

A backup is a checkpoint, the segments that it lists, and the log from there up to one moment. That is what a process
that is killed at that moment leaves, and a restart loses nothing of it. It is taken in this order:

1. A checkpoint is made. From then on none removes anything (`Store.keeps`): what the backup lists stays as it is.
2. The client copies the snapshot and the segments. Delete flags are changed in place, so they are not taken from the
   files but from memory, at any time before the moment: the log up to there says why each of them is set.
3. The moment: everything that was accepted is written, and the log up to here belongs to the backup.

What is kept is bounded: by a lease that every request renews, by a time for the whole of it, and by bytes. Beyond any
of these, or where the disk is nearly full, the backup is given up and the client has to begin again; the segments that
it has copied it need not copy again. There is one backup at a time. What is to be erased waits for its end, and has
time for that: erasing begins half of `erase_after_ms` before it has to be done, and a backup takes half of the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from xxhash import xxh3_128_hexdigest

from topics.clock import Clock
from topics.errors import BackupNotFound, BackupRunning, BackupUnavailable, InvalidRequest, StorageReadOnly, TopicsError
from topics.storage.disk import read_at
from topics.storage.segment.format import HEADER_BYTES, SegmentName, parse_name
from topics.storage.segment.segment import Segment, unreadable
from topics.storage.snapshot import snapshot
from topics.storage.store import Store

LEASE_MS: Final = 30_000
HOLD_MS_MAX: Final = 3_600_000
# The part of `erase_after_ms` for which a backup may keep what is to be erased.
HOLD_PART: Final = 4
KEPT_BYTES_MAX: Final = 1 << 30
SEGMENTS_MAX: Final = 256
"""So many segments are described in one answer."""

Segments = dict[SegmentName, Segment]
OnBegun = Callable[["Backup | TopicsError"], None]
OnMoment = Callable[["dict[str, Any] | TopicsError"], None]


class Backup:
    """A backup that is being taken: what it consists of, and how it is read. `read` and `describe` are for a job."""

    def __init__(self, store: Store, segments: Segments) -> None:
        self.id = secrets.token_hex(8)
        self.snapshot = f"snapshots/{snapshot.name(store.history.snapshot_number)}"
        self.snapshot_bytes = store.snapshot_bytes
        self.wal: dict[str, int] = {}
        self._store = store
        self._segments = segments

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes of a file of this backup. Raises TopicsError."""
        if file == self.snapshot or file in self.wal:
            end = self.wal.get(file, self.snapshot_bytes)
            return read_at(
                self._store.disk, f"{self._store.directory}/{file}", offset, max(0, min(length, end - offset))
            )
        parsed = parse_name(file.removeprefix("segments/")) if file.startswith("segments/") else None
        segment = None if parsed is None else self._segments.get(parsed[0])
        if parsed is None or segment is None:
            raise InvalidRequest(f'"{file[:200]}" is no file of this backup', field="file")
        try:
            if parsed[1] == "flags":
                return b"".join(segment.flags_parts())[offset : offset + length]
            tier = segment.tier if parsed[1] == "data" else segment.tiers.hot
            return tier.read(file.removeprefix("segments/"), offset, length)
        except OSError as error:
            raise unreadable(segment, error) from error

    def describe(self, stems: list[str]) -> list[dict[str, Any]]:
        """How long the files of these segments are, and by what a copy of them is known. Raises TopicsError."""
        return [self._describe(stem) for stem in stems]

    def _describe(self, stem: str) -> dict[str, Any]:
        parsed = parse_name(f"{stem}.data")
        segment = None if parsed is None else self._segments.get(parsed[0])
        if segment is None:
            raise InvalidRequest(f'"{stem[:200]}" is no segment of this backup', field="segments")
        try:
            return {
                "segment": stem,
                "data_bytes": segment.data_bytes,
                "index_bytes": segment.tiers.hot.size(segment.name.index_file) or 0,
                "mark": segment.read_mark(),
                "flags_bytes": HEADER_BYTES + segment.records,
                "flags": xxh3_128_hexdigest(b"".join(segment.flags_parts())) if segment.has_flags else None,
            }
        except OSError as error:
            raise unreadable(segment, error) from error


class Backups:
    """The backup that is under way, if any."""

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None], erase_after_ms: int) -> None:
        """`wake` asks for a turn."""
        self._hold_ms = min(HOLD_MS_MAX, erase_after_ms // HOLD_PART)
        self._store = store
        self._clock = clock
        self._wake = wake
        self._begun: OnBegun | None = None
        self._listed: Segments | None = None
        self._backup: Backup | None = None
        self._moments: list[OnMoment] = []
        self._lease_ns = self._until_ns = 0
        self._kept_from = self._checkpoints = 0

    def begin(self, begun: OnBegun) -> None:
        """Have a checkpoint made; `begun` gets the backup, or why there is none. Raises BackupRunning."""
        self._expire()
        if self._backup is not None or self._begun is not None:
            left_ms = max(0, self._lease_ns - self._clock.elapsed_ns()) // 1_000_000
            raise BackupRunning(
                "another backup is under way; try again when it is done. One that was cut off ends by itself"
                f" {LEASE_MS // 1000} seconds after its last request",
                retry_after_ms=max(1000, left_ms),
            )
        self._refuse_read_only()
        self._begun = begun
        self._wake()

    def _refuse_read_only(self) -> None:
        for shard in self._store.shards:
            if shard.read_only is not None:
                raise StorageReadOnly(shard.read_only.message)

    def cancel(self) -> None:
        """Nobody waits for the backup any more that was to begin."""
        self._begun = None

    @property
    def waits(self) -> bool:
        """Whether a backup waits for the next checkpoint."""
        return self._begun is not None

    def listing(self) -> Segments | None:
        """A checkpoint begins: what its segments are to be added to, or None where no backup waits for it."""
        self._listed = {} if self.waits else None
        return self._listed

    def checkpointed(self, error: BaseException | None) -> None:
        """The checkpoint is over."""
        listed, self._listed = self._listed, None
        if listed is None or self._begun is None:
            return
        begun, self._begun = self._begun, None
        if error is not None:
            begun(BackupUnavailable(f"the checkpoint for the backup could not be written: {error}"))
            return
        store = self._store
        store.keeps = True
        self._kept_from, self._checkpoints = self._left_bytes(), store.checkpoints_total
        self._until_ns = self._clock.elapsed_ns() + self._hold_ms * 1_000_000
        self._backup = Backup(store, listed)
        self._renew()
        begun(self._backup)

    def find(self, id: str) -> Backup:
        """The backup with this id; its lease begins anew. Raises BackupNotFound."""
        self._expire()
        if self._backup is None or self._backup.id != id:
            raise BackupNotFound(backup=id[:64])
        self._renew()
        return self._backup

    def moment(self, id: str, answer: OnMoment) -> None:
        """Let the log up to now belong to the backup; `answer` gets what that is, as soon as everything is written."""
        self.find(id)
        self._moments.append(answer)
        self._wake()

    def end(self, id: str) -> None:
        """The backup is complete, or given up: its files may go. Raises BackupNotFound."""
        self.find(id)
        self._release()

    def step(self) -> None:
        """After a turn: take the moment that was asked for, and end what has lasted too long."""
        if self._begun is not None:
            try:
                self._refuse_read_only()
            except StorageReadOnly as error:
                begun, self._begun = self._begun, None
                begun(error)
        if self._backup is None:
            return
        self._expire()
        if self._moments and self._backup is not None and not self._store.pending:
            moments, self._moments = self._moments, []
            taken = self._moment(self._backup)
            for answer in moments:
                answer(taken)

    def close(self) -> None:
        """The server stops: nothing is kept for a backup any longer."""
        if self._backup is not None:
            self._release()

    def _moment(self, backup: Backup) -> dict[str, Any]:
        store = self._store
        backup.wal = {f"wal/{name}": at for shard in store.shards for name, at in shard.files.written()}
        return {
            "ts": self._clock.now_ms(),
            "lsn": store.last_lsn,
            "boot_id": store.disk.boot_id(),
            "wal": [{"file": file, "bytes": size} for file, size in backup.wal.items()],
        }

    def _renew(self) -> None:
        self._lease_ns = self._clock.elapsed_ns() + LEASE_MS * 1_000_000

    def _left_bytes(self) -> int:
        """A count of the bytes that a checkpoint would have removed if it could."""
        store = self._store
        return store.segments.left_bytes_total + sum(shard.bytes_written_total for shard in store.shards)

    def _expire(self) -> None:
        if self._backup is None:
            return
        now_ns = self._clock.elapsed_ns()
        is_large = self._left_bytes() - self._kept_from > KEPT_BYTES_MAX
        if now_ns >= min(self._lease_ns, self._until_ns) or is_large or self._store.is_full:
            self._release()

    def _release(self) -> None:
        store = self._store
        store.keeps = False
        self._backup = None
        moments, self._moments = self._moments, []
        for answer in moments:
            answer(BackupNotFound())
        if store.checkpoints_total != self._checkpoints:
            # What the checkpoints since then have left goes with the next one, which this makes due.
            store.after_checkpoint(_nothing)


def _nothing() -> None:
    pass
