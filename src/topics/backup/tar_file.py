"""TarFile: a backup as one file, `.tar` or `.tar.gz`: the manifest first, then its files in order."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from xxhash import xxh3_128

from topics.backup.manifest import READ_BYTES, Damaged, Entry, Manifest, decode
from topics.backup.transfer import sync_directory
from topics.storage.marked import BACKUP_NAME

SUFFIXES: Final = (".tar", ".tar.gz", ".tgz")


def is_tar(path: Path) -> bool:
    """Whether this is the name of a tar file."""
    return path.name.endswith(SUFFIXES)


def pack(directory: Path, manifest: Manifest, target: Path) -> None:
    """Write a backup as a tar file; it has its name once it is durable and was read back."""
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        with temporary.open("wb") as file:
            with _opened(file, target) as packed:
                _add(packed, BACKUP_NAME, io.BytesIO(content := manifest.encode()), len(content))
                for entry in manifest.files:
                    with (directory / entry.path).open("rb") as member:
                        _add(packed, entry.path, member, entry.bytes)
            file.flush()
            os.fsync(file.fileno())
        for _ in unpack(temporary):
            pass
        temporary.replace(target)
        sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _opened(file: IO[bytes], target: Path) -> tarfile.TarFile:
    if target.name.endswith(".tar"):
        return tarfile.open(fileobj=file, mode="w")
    return tarfile.open(fileobj=file, mode="w:gz", compresslevel=3)


def _add(packed: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    packed.addfile(member, content)


def unpack(path: Path, target: Path | None = None) -> Iterator[Manifest]:
    """Yield the manifest of a tar file, then check every file, and write it below `target` where that is given.

    Raises Damaged.
    """
    try:
        with tarfile.open(path, "r:*") as packed:
            first = packed.next()
            content = None if first is None or first.name != BACKUP_NAME else packed.extractfile(first)
            if content is None:
                raise Damaged(f"{path} is no backup: it does not begin with {BACKUP_NAME}")
            manifest = decode(content.read(), path)
            yield manifest
            expected = {entry.path: entry for entry in manifest.files}
            for member in packed:
                if member.name in expected:
                    _extract(packed, member, expected.pop(member.name), target, path)
            if expected:
                raise Damaged(f"{path}: {next(iter(expected))} is missing")
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Damaged(f"{path} is damaged: {error}") from None


def _extract(packed: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, target: Path | None, tar: Path) -> None:
    source, hashed, size = packed.extractfile(member), xxh3_128(), 0
    if source is None:
        raise Damaged(f"{tar}: {entry.path} is no file")
    with open(os.devnull if target is None else target / entry.path, "wb") as file:  # noqa: PTH123
        while piece := source.read(READ_BYTES):
            hashed.update(piece)
            size += len(piece)
            file.write(piece)
        if target is not None:
            file.flush()
            os.fsync(file.fileno())
    if (size, hashed.hexdigest()) != (entry.bytes, entry.xxh3):
        raise Damaged(f"{tar}: {entry.path} is damaged")
