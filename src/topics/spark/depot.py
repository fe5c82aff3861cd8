"""Depot: where the files of a write are kept until they are published: a directory, or a place in an object store.

Both keep a file whole and durably once it is closed (a directory may leave out the second, for a write that nobody
takes up again), and both can say which of two writers was the first: a file system by making a link, which succeeds
once; an object store by a put that fails if the object exists. That put is the one with which `deltalake` creates a
table, so a text that is decided once is the description of an empty table, in its version 0. Keys for the store come
from the environment, on each executor for itself, as for a lake (see `place`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from topics.spark.errors import BadOption, SourceError
from topics.spark.place import BadPlace, Place

READ_BYTES: Final = 4 << 20


class Depot(Protocol):
    """A directory of staged files."""

    def create(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A new file to write bytes to, durable once the context ends."""

    def open(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A file to read bytes from. Raises FileNotFoundError."""

    def decide(self, name: str, text: str) -> str:
        """Keep a text under this name unless there is one; the text that is there."""

    def mark(self, name: str) -> None:
        """Keep an empty file."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def directories(self) -> list[str]:
        """The names of the directories in it, in order."""

    def below(self, name: str) -> Depot:
        """A directory in it."""

    def clear(self, suffix: str) -> None:
        """Remove its files with names that end so."""

    def remove(self) -> None:
        """Remove it with everything in it, as far as that is possible."""


def depot_of(option: str, given: str | Path, durable: bool = True) -> Depot:
    """The depot that an option names: a path, or an address as of a lake.

    What is not `durable` is for a write that nobody takes up again after a crash.
    """
    try:
        place = Place(given)
    except BadPlace as error:
        if "@" in str(given):
            # The value is not repeated: it may hold a password.
            raise SourceError(f'option "{option}": {error}') from None
        raise BadOption(
            option,
            given,
            "records are staged in a directory that driver and executors share, or in an object store: "
            'set "stagingDir" to such a directory, or to an address such as s3://bucket/staging',
        ) from None
    return ObjectDepot(place) if place.path is None else LocalDepot(place.path, durable)


class LocalDepot:
    """A directory of a file system."""

    def __init__(self, path: Path, durable: bool = True) -> None:
        self._path = path
        self._durable = durable

    def __str__(self) -> str:
        return str(self._path)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """A new file to write bytes to, durable once the context ends where the depot is."""
        self._path.mkdir(parents=True, exist_ok=True)
        with (self._path / name).open("xb") as file:
            yield file
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        if self._durable:
            _sync_directory(self._path)

    def open(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A file to read bytes from. Raises FileNotFoundError."""
        return (self._path / name).open("rb")

    def decide(self, name: str, text: str) -> str:
        """Keep a text under this name unless there is one; the text that is there."""
        write_once(self._path / name, text)
        return (self._path / name).read_text()

    def mark(self, name: str) -> None:
        """Keep an empty file."""
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / name).touch()

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self._path / name).exists()

    def directories(self) -> list[str]:
        """The names of the directories in it, in order."""
        return sorted(path.name for path in self._path.iterdir() if path.is_dir()) if self._path.is_dir() else []

    def below(self, name: str) -> LocalDepot:
        """A directory in it."""
        return LocalDepot(self._path / name, self._durable)

    def clear(self, suffix: str) -> None:
        """Remove its files with names that end so."""
        for path in self._path.glob(f"*{suffix}"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it with everything in it, as far as that is possible."""
        shutil.rmtree(self._path, ignore_errors=True)


class ObjectDepot:
    """A prefix of names in an object store."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __str__(self) -> str:
        return str(self._place)

    def create(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A new file to write bytes to, durable once the context ends."""
        return self._place.create(name)

    def open(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A file to read bytes from. Raises FileNotFoundError."""
        opened: contextlib.AbstractContextManager[Any] = self._place.files().open_input_stream(
            name, buffer_size=READ_BYTES
        )
        return opened

    def decide(self, name: str, text: str) -> str:
        """Keep a text under this name unless there is one; the text that is there."""
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        refused: DeltaError | None = None
        try:
            schema = pa.schema([("none", pa.int64())])
            DeltaTable.create(str(self._place / name), schema, mode="error", description=text)
        except DeltaError as error:
            refused = error
        # One that was overtaken may have become version 1 without an error: what is decided is version 0.
        try:
            first = self._place.read(f"{name}/_delta_log/{0:020d}.json")
        except FileNotFoundError:
            raise SourceError(f"{self._place}/{name} cannot be written: {refused}") from None
        entries = map(json.loads, first.splitlines())
        return str(next(entry["metaData"]["description"] for entry in entries if "metaData" in entry))

    def mark(self, name: str) -> None:
        """Keep an empty file."""
        self._place.write(name, b"")

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        from pyarrow import fs

        try:
            return bool(self._place.files().get_file_info(name).type == fs.FileType.File)
        except OSError as error:
            raise SourceError(f"{self._place} cannot be read: {plain(error)}") from None

    def directories(self) -> list[str]:
        """The names of the directories in it, in order."""
        return self._place.directories("")

    def below(self, name: str) -> ObjectDepot:
        """A directory in it."""
        return ObjectDepot(self._place / name)

    def clear(self, suffix: str) -> None:
        """Remove its files with names that end so."""
        self._delete(suffix, recursive=False)

    def remove(self) -> None:
        """Remove it with everything in it, as far as that is possible."""
        with contextlib.suppress(OSError):
            self._delete("", recursive=True)

    def _delete(self, suffix: str, recursive: bool) -> None:
        from pyarrow import fs

        files = self._place.files()
        for entry in files.get_file_info(fs.FileSelector("", allow_not_found=True, recursive=recursive)):
            if entry.type == fs.FileType.File and entry.base_name.endswith(suffix):
                files.delete_file(entry.path)


def plain(error: OSError) -> str:
    """What an object store says of an error, as one line without colours."""
    return error.strerror or " ".join(re.sub(r"\x1b\[\d+m|\u21b3", "", str(error)).split())


def write_once(path: Path, text: str) -> None:
    """Write a file durably unless it exists: the first one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with temporary.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link is made or refused in one step, unlike a rename, which would replace the first file.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
