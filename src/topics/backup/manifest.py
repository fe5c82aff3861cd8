"""Manifest: the file `BACKUP` in a backup: what belongs to it, how long each file is, and its checksum.

It is a line of JSON and a line with the checksum of the first. It is written last, and a directory without it is no
backup. Files in a backup never change, so every byte of it can be checked at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_128, xxh3_128_hexdigest

from topics.commands.failures import CommandError
from topics.storage.marked import BACKUP_NAME

FORMAT: Final = 1
READ_BYTES: Final = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    """One file: `path` is relative to the backup, `mark` says which segment it is of, whatever its name (BACKUP-4)."""

    path: str
    bytes: int
    xxh3: str
    mark: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What a backup consists of. `taken_ts` is its moment, `boot_id` the kernel under which its log was written."""

    format: int
    taken_ts: int
    lsn: int
    boot_id: str
    topics: int
    files: list[Entry]

    @property
    def size_bytes(self) -> int:
        """How long all files are together."""
        return sum(entry.bytes for entry in self.files)

    def encode(self) -> bytes:
        """The content of the file."""
        text = msgspec.json.encode(self)
        return b"%b\n%b\n" % (text, xxh3_128_hexdigest(text).encode())


class Damaged(CommandError):
    """A backup is not what it was."""


def decode(content: bytes, where: object) -> Manifest:
    """The manifest in the content of a file. Raises Damaged, or CommandError for another format."""
    text, _, check = content.rstrip(b"\n").rpartition(b"\n")
    if xxh3_128_hexdigest(text).encode() != check:
        raise Damaged(f"{where}: the manifest {BACKUP_NAME} is damaged")
    manifest = msgspec.json.decode(text, type=Manifest)
    if manifest.format != FORMAT:
        raise CommandError(f"{where}: backup format {manifest.format}; this program reads format {FORMAT}")
    return manifest


def read(directory: Path) -> Manifest | None:
    """The manifest of a backup; None where the directory is none. Raises as `decode`."""
    try:
        return decode((directory / BACKUP_NAME).read_bytes(), directory)
    except FileNotFoundError:
        return None


def damage(directory: Path, entries: list[Entry]) -> Iterator[str]:
    """A line for each file that is missing, has another length, or another content."""
    for entry in entries:
        try:
            size, found = digest(directory / entry.path)
        except FileNotFoundError:
            yield f"DAMAGE {entry.path}: it is missing"
            continue
        if size != entry.bytes:
            yield f"DAMAGE {entry.path}: it has {size} bytes, and the manifest says {entry.bytes}"
        elif found != entry.xxh3:
            yield f"DAMAGE {entry.path}: its checksum is not the one in the manifest"


def digest(path: Path, take: Callable[[bytes], object] = lambda piece: None) -> tuple[int, str]:
    """The length and the checksum of a file; `take` gets each piece of it."""
    hashed, size = xxh3_128(), 0
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            hashed.update(piece)
            size += len(piece)
            take(piece)
    return size, hashed.hexdigest()


def time_text(ts: int) -> str:
    """A time in milliseconds as people read it."""
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """A time in milliseconds, from such a number or from ISO 8601, in UTC if it does not say. Raises CommandError."""
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f'"{text}" is no time: write it as 2026-11-17T09:30:00Z, or in milliseconds') from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
