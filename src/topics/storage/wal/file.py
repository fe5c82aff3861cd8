"""The format of a file of the WAL, `wal/<generation>-<shard>-<number>.wal`, all three in hexadecimal.

A header of 64 bytes, then frames back to back, then zeros up to the end of the file (docs/storage-format.md).

Files are preallocated and zero-filled, since the sync of a small write into bytes that were already written has no
metadata to carry (0.15 ms against 0.5). A file gets its final name only when its header and its zeros are durable, so
a name ending in `.wal` always has a header, and its length never changes again: a file that is shorter than its header
says has lost its end. The name says where the file belongs, so a damaged header costs nothing but a report, and a
header that names another place shows that the file is a copy. Every start opens a generation of its own and never
writes to an older one, so what recovery has seen stays as it was, and the number of shards may change from one start to
the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.storage.damage import UnknownFormat
from topics.storage.disk import TEMPORARY_SUFFIX, Disk

MAGIC: Final = b"TOPICWAL"
VERSION: Final = 1
HEADER_BYTES: Final = 64
# A reader looks this far ahead of its frame. A writer leaves as much unused, so that a reader need not copy the file.
TAIL_BYTES: Final = 128
PROBE_BYTES: Final = 1 << 20
ZEROS_KEPT_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(PROBE_BYTES)
# Says that a sync has failed in this directory; empty.
SUSPECT_NAME: Final = "SUSPECT"
_HEADER = struct.Struct("<8sIIQQ16sQ")
_CHECKSUM = struct.Struct("<Q")
_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{8})\.wal")

assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES


class WalName(NamedTuple):
    """Which file of which shard and generation; sorts in the order in which files are replayed."""

    generation: int
    shard: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation:08x}-{self.shard:04x}-{self.number:08x}.wal"


def parse_name(text: str) -> WalName | None:
    """The name that a directory entry is, or None where it is not a WAL file."""
    match = _NAME.fullmatch(text)
    return None if match is None else WalName(*(int(part, 16) for part in match.groups()))


def boot_digest(boot_id: str) -> bytes:
    """A boot id as the 16 bytes that are written to files."""
    return hashlib.sha256(boot_id.encode()).digest()[:16]


class WalHeader(NamedTuple):
    """What a file says about itself; `length` is 0 where it does not say."""

    name: WalName
    boot: bytes
    length: int


def encode_header(name: WalName, boot: bytes, length: int = 0) -> bytes:
    """The 64 bytes at the start of a file."""
    head = _HEADER.pack(MAGIC, VERSION, name.shard, name.generation, name.number, boot, length)
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def decode_header(data: bytes, path: str) -> WalHeader | None:
    """The header of a file, or None where it is damaged. Raises UnknownFormat for another version."""
    if len(data) < HEADER_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if checksum != xxh3_64_intdigest(data[: _HEADER.size]):
        return None
    magic, version, shard, generation, number, boot, length = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise UnknownFormat(f"{path}: WAL format version {version}; this program reads version {VERSION}")
    return WalHeader(WalName(generation, shard, number), boot, length)


def create(
    disk: Disk,
    directory: str,
    name: WalName,
    boot: bytes,
    length: int,
    *,
    zero_fill: bool,
    enough: Callable[[], bool] | None = None,
) -> int:
    """Create a file of `length` bytes, durable under its final name, and return the handle."""
    path = f"{directory}/{name}"
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        disk.allocate(handle, length, zero_fill=zero_fill, enough=enough)
        disk.write(handle, 0, encode_header(name, boot, length))
        disk.sync(handle)
        disk.rename(temporary, path)
        disk.sync_dir(directory)
    except BaseException as error:
        with contextlib.suppress(OSError):
            disk.close(handle)
            if isinstance(error, OSError) and disk.exists(temporary):
                # On a full disk what is half made takes the room that would help.
                disk.unlink(temporary)
        raise
    return handle


def used_bytes(disk: Disk, handle: int) -> tuple[int, int]:
    """Where in a file only zeros follow, and the file's length. A preallocated file is compared from its end."""
    size = used = disk.size(handle)
    while used > 0:
        start = (used - 1) // PROBE_BYTES * PROBE_BYTES
        chunk = disk.read(handle, start, used - start)
        if chunk != _ZEROS[: len(chunk)]:
            break
        used = start
    # A frame may end in zeros of its own; this is more than any that this program writes has.
    return min(size, used + ZEROS_KEPT_BYTES), size


def read_used(disk: Disk, handle: int) -> tuple[bytes, int, int]:
    """The bytes of a file up to where only zeros follow, and TAIL_BYTES beyond; where that is; the file's length."""
    used, size = used_bytes(disk, handle)
    return read_slack(disk, handle, 0, used), used, size


def read_file(disk: Disk, path: str) -> tuple[bytes, int, int]:
    """As `read_used`, of a file that is not open."""
    handle = disk.open(path)
    try:
        return read_used(disk, handle)
    finally:
        disk.close(handle)


def read_slack(disk: Disk, handle: int, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of a file and TAIL_BYTES beyond them, zeros where the file has none."""
    data = disk.read(handle, begin, end + TAIL_BYTES - begin)
    return data.ljust(end + TAIL_BYTES - begin, b"\0")
