"""Place: where a lake is kept: a directory, or an address in an object store such as `s3://bucket/lake`.

A place looks like a path as far as a lake needs that. In an object store everything goes through the store of
`deltalake`, as the tables themselves do: it finds keys and endpoints in the environment (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and the like) or from the machine, on each
executor for itself. So no key is part of a plan, an option or a log line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
WRITE_BYTES: Final = 8 << 20
"""Parts of this size are sent to an object store."""
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)


class Pieces:
    """A stream that takes bytes of any size.

    That of a store takes no buffer of Arrow, which is what it would be handed if more came at once than is gathered.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, content: bytes | memoryview) -> None:
        """Write all of it."""
        for at in range(0, len(content), WRITE_BYTES // 2):
            self._stream.write(content[at : at + WRITE_BYTES // 2])


class BadPlace(ValueError):
    """What was given is neither a path nor an address that is understood."""


class Place:
    """One directory."""

    def __init__(self, given: str | Path | Place) -> None:
        text = str(given)
        found = None if isinstance(given, Path) else _ADDRESS.fullmatch(text)
        self.shown = text
        """As it was given, for messages."""
        self.path: Path | None = None
        """In the file system; None in an object store."""
        if found is None:
            self.path = Path(text).absolute()
        elif found[1].lower() == "file":
            self.path = Path("/" + found[3].lstrip("/"))
        elif found[1].lower() not in SCHEMES or not found[2] or not found[3].strip("/"):
            raise BadPlace(
                f'"{text}" is no place for a lake; name a directory or an address such as s3://bucket/lake '
                f"({', '.join(f'{scheme}://' for scheme in ('file', *SCHEMES))})"
            )
        elif "@" in found[3].partition("/")[0] and ":" in found[3].partition("@")[0]:
            raise BadPlace("the address of a lake holds a password; keys come from the environment")
        self._address = text.rstrip("/") if self.path is None else str(self.path)

    def __str__(self) -> str:
        return self._address

    def __repr__(self) -> str:
        return f"Place({self._address})"

    def __truediv__(self, name: str) -> Place:
        return Place(self.path / name if self.path is not None else f"{self._address}/{name}")

    @property
    def for_spark(self) -> str:
        """The address as Spark's own readers take it; for S3 they need Hadoop's connector, which has its own scheme."""
        return re.sub(r"^s3:", "s3a:", self._address)

    def mkdir(self) -> None:
        """Make the directory; an object store has none."""
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)

    def is_table(self) -> bool:
        """Whether there is a Delta table here."""
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self._address))

    def is_iceberg(self) -> bool:
        """Whether the lake here has Iceberg tables."""
        return "metadata" in self.directories("events")

    def files(self) -> Any:
        """The file system of Arrow whose root is this place."""
        from pyarrow import fs

        if self.path is not None:
            return fs.SubTreeFileSystem(str(self.path), fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self._address))

    def read(self, name: str) -> bytes:
        """The content of a file; raises FileNotFoundError."""
        with self.files().open_input_stream(name) as stream:
            content: bytes = stream.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, in the place of one that is there."""
        self.mkdir()
        with self.create(name) as stream:
            stream.write(content)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Pieces]:
        """A file to write, in the place of one that is there, which is whole once the context ends."""
        with self.files().open_output_stream(name, buffer_size=WRITE_BYTES) as stream:
            yield Pieces(stream)

    def directories(self, below: str) -> list[str]:
        """The names of the directories in a directory below this one; none where it does not exist."""
        from pyarrow import fs

        found = self.files().get_file_info(fs.FileSelector(below, allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.type == fs.FileType.Directory)

    def tables(self) -> list[str]:
        """The Delta tables of a lake, by their directories below it."""
        names = ["errors", "events", "losses", *(f"typed/{name}" for name in self.directories("typed"))]
        return [name for name in names if (self / name).is_table()]
