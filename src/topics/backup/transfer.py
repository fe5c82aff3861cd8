"""Transfer: one backup on its way from a server into a directory.

It goes in rounds. A round begins a backup at the server (engine/upkeep/backups.py), copies what is not there yet, and
ends with the server's log up to one moment. Where the server gives the backup up (it was restarted, or would have had
to keep too much), another round begins, in which the segments that were copied need not be copied again: so each
round has less to do than the one before.

A segment is there already if a segment of the same mark is: in this directory, from an earlier round or an earlier
attempt that was cut off (`FILES`), or in the backup before. Its delete flags are in a file of their own in a backup,
which is new whenever they have changed. So no file of a backup ever changes, and backups share what is the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from xxhash import xxh3_128

from topics.backup.manifest import FORMAT, Entry, Manifest, damage
from topics.backup.source import Interrupted, Source
from topics.commands.failures import CommandError
from topics.storage.disk import RealDisk
from topics.storage.inspect.verify import verify
from topics.storage.marked import BACKUP_NAME
from topics.storage.segment.format import SegmentName
from topics.storage.snapshot.reader import SnapshotReader
from topics.storage.store import LAYOUT_NAME, LAYOUTS_READ
from topics.storage.wal import file as walfile

ROUNDS_MAX: Final = 10
PATIENCE_S: Final = 60.0
DESCRIBED: Final = 256
JOURNAL_NAME: Final = "FILES"
SESSION_NAME: Final = "SESSION"
FOLDERS: Final = ("segments", "snapshots", "wal", "quarantine")

Report = Callable[[str], object]


class Transfer:
    """A backup in the making. `before` is a backup with files that need not be copied again."""

    def __init__(self, source: Source, directory: Path, before: tuple[Path, Manifest] | None, report: Report) -> None:
        self._source = source
        self._directory = directory
        self._report = report
        # By path, where a copy is and what it is; the files that were received in this run are among those of it.
        self._known: dict[str, tuple[Path, Entry]] = {}
        self._received: set[str] = set()
        if before is not None:
            self._known = {entry.path: (before[0] / entry.path, entry) for entry in before[1].files}
        for folder in FOLDERS:
            (directory / folder).mkdir(parents=True, exist_ok=True)
        for entry in self._journal():
            self._known[entry.path] = directory / entry.path, entry
        with contextlib.suppress(FileNotFoundError):
            # An attempt that was cut off: the server keeps files for it until it is ended, or its lease has run out.
            source.end_other((directory / SESSION_NAME).read_text())

    def take(self) -> Manifest:
        """Take the backup; the directory has its manifest then. Raises CommandError."""
        for left in reversed(range(ROUNDS_MAX)):
            had = len(self._received)
            try:
                return self._complete(*self._round(0.0 if left == ROUNDS_MAX - 1 else PATIENCE_S))
            except Interrupted as interrupted:
                if not left or (len(self._received) == had and left < ROUNDS_MAX - 3):
                    raise CommandError(f"the backup could not be completed: {interrupted}") from None
                self._report(f"beginning again: {interrupted}")
                self._source.pause(min(5.0, 0.5 * (ROUNDS_MAX - left)))
            finally:
                self._source.end()
        raise AssertionError("the last round has raised")

    def _round(self, patience_s: float) -> tuple[list[Entry], dict[str, Any], int]:
        """Everything that belongs to the backup, its moment, and how many topics it has."""
        for folder in ("snapshots", "wal"):
            for stale in (self._directory / folder).iterdir():
                stale.unlink()
        file, size = self._source.begin(patience_s)
        (self._directory / SESSION_NAME).write_text(self._source.id)
        entries = [self._receive(file, size)]
        loaded = SnapshotReader(RealDisk(), str(self._directory / file), file)
        if loaded.regions():
            raise CommandError(f"the server's {file} is damaged: see `topics verify` and the server's log")
        names = [
            SegmentName(image.id, ref.first_seq, ref.edition)
            for image in loaded.images.values()
            for ref in image.segments
        ]
        topics = len(loaded.images)
        del loaded
        for described in self._described(names):
            entries += self._segment(described)
        moment = self._source.moment()
        entries += [self._receive(each["file"], each["bytes"]) for each in moment["wal"]]
        return entries, moment, topics

    def _described(self, names: list[SegmentName]) -> Iterator[dict[str, Any]]:
        rest = iter(names)
        while batch := list(islice(rest, DESCRIBED)):
            yield from self._source.describe([name.stem for name in batch])

    def _segment(self, described: dict[str, Any]) -> list[Entry]:
        """The files of one segment, copied where they are not there."""
        stem, mark = f"segments/{described['segment']}", described["mark"]
        entries = []
        for suffix, size in (("data", described["data_bytes"]), ("idx", described["index_bytes"])):
            path = f"{stem}.{suffix}"
            entries.append(self._reuse(path, mark=mark, size=size) or self._receive(path, size, mark))
        if described["flags"] is not None:
            path, size = f"{stem}.flags", described["flags_bytes"]
            entries.append(self._reuse(path, xxh3=described["flags"], size=size) or self._receive(path, size))
        return entries

    def _reuse(self, path: str, *, size: int, mark: str = "", xxh3: str = "") -> Entry | None:
        """A file that is known and the same, brought to this directory; None where there is none."""
        copy, entry = self._known.get(path, (None, None))
        if copy is None or entry is None or entry.bytes != size:
            return None
        if (mark and entry.mark != mark) or (xxh3 and entry.xxh3 != xxh3):
            return None
        target = self._directory / path
        try:
            if copy != target:
                target.unlink(missing_ok=True)
                _link(copy, target)
            if target.stat().st_size == size:
                return entry
        except OSError:
            # The backup before is damaged: the server has it still.
            pass
        return None

    def _receive(self, path: str, size: int, mark: str = "") -> Entry:
        """Copy a file from the server."""
        target, source = self._directory / path, self._source
        target.unlink(missing_ok=True)
        hashed, at = xxh3_128(), 0
        with target.open("xb") as file:
            while at < size:
                piece = source.piece(path, at, size - at)
                if path.startswith("wal/") and at == 0:
                    piece = _wal_header(piece, path, size) + piece[walfile.HEADER_BYTES :]
                file.write(piece)
                hashed.update(piece)
                at += len(piece)
            file.flush()
            os.fsync(file.fileno())
        entry = Entry(path, at, hashed.hexdigest(), mark)
        self._received.add(path)
        if path.startswith("segments/"):
            self._known[path] = target, entry
            with (self._directory / JOURNAL_NAME).open("ab") as journal:
                journal.write(msgspec.json.encode(entry) + b"\n")
        return entry

    def _journal(self) -> Iterator[Entry]:
        """What an attempt that was cut off has copied."""
        with contextlib.suppress(FileNotFoundError):
            for line in (self._directory / JOURNAL_NAME).read_bytes().splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    yield msgspec.json.decode(line, type=Entry)

    def _complete(self, entries: list[Entry], moment: dict[str, Any], topics: int) -> Manifest:
        """Check what there is, and make it a backup."""
        layout = f"{LAYOUTS_READ[-1]}\n".encode()
        (self._directory / LAYOUT_NAME).write_bytes(layout)
        entries.append(Entry(LAYOUT_NAME, len(layout), xxh3_128(layout).hexdigest()))
        belongs = {entry.path for entry in entries}
        for folder in FOLDERS:
            for file in (self._directory / folder).iterdir():
                if f"{folder}/{file.name}" not in belongs:
                    file.unlink()
        self._check(entries)
        manifest = Manifest(FORMAT, moment["ts"], moment["lsn"], moment["boot_id"], topics, entries)
        for name in (JOURNAL_NAME, SESSION_NAME):
            (self._directory / name).unlink(missing_ok=True)
        write_durably(self._directory / BACKUP_NAME, manifest.encode())
        for folder in (*FOLDERS, ""):
            sync_directory(self._directory / folder)
        return manifest

    def _check(self, entries: list[Entry]) -> None:
        """Read everything that was received once more, and compare."""
        found = list(damage(self._directory, [entry for entry in entries if entry.path in self._received]))
        if found:
            raise CommandError(f"the disk of the backup does not keep what it is given: {found[0]}")
        lines: list[str] = []
        trusted = {entry.path for entry in entries} - self._received
        if verify(str(self._directory), lines.append, trusted=trusted):
            for line in lines:
                if line.startswith("DAMAGE"):
                    self._report(f"{line}; so it is on the server, and a restored server reports it as lost")


def _wal_header(piece: bytes, path: str, size: int) -> bytes:
    """The header of a WAL file that ends here: what comes later is not part of the backup."""
    header = walfile.decode_header(piece, path)
    if header is None:
        raise CommandError(f"the server's {path} is damaged: see the server's log")
    return walfile.encode_header(header.name, header.boot, size)


def _link(copy: Path, target: Path) -> None:
    """The same file under another name; a copy where the file system has no hard links."""
    try:
        target.hardlink_to(copy)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(copy, target)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file; return once it is durable."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
