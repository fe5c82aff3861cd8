"""Staging: what makes a write exactly-once although tasks are retried, duplicated and killed.

A task that is run again after a shuffle may yield the same rows in another order, or cut into other partitions, so no
key derived from a task can tell what was already written. Therefore:

1. A task publishes nothing. It writes its records, ready for the wire, into a file of its own and names it in its
   commit message. Attempts that fail, and the slower of two speculative ones, leave files that no message names.
2. The driver writes the list of files as the manifest of (producer, epoch). The first manifest wins: it is linked into
   place, which succeeds once. A replayed batch or a second driver takes the one that is there.
3. The driver publishes the chunks of the manifest in order, under `producer_id` and `producer_seq` = epoch and number
   of the chunk. The server drops what it already has, however long ago that was.

So the records of an epoch are decided once, at step 2, and appended once, at step 3. Nothing is deleted before the
next epoch commits: Spark may call `abort` for a batch that was published.

A staged file is a sequence of chunks: magic, bytes of the topic's name, records, bytes of the records, XXH3-64 of
them; then the name and the records as JSON objects with commas between them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.spark.client import Client
from topics.spark.errors import SourceError
from topics.spark.rows import Rendered

CHUNK_RECORDS: Final = 2_000
CHUNK_BYTES: Final = 240 << 10
"""The server takes a body of up to 256 KiB in one piece, and a third cheaper than a larger one."""
CHUNKS_MAX: Final = 1 << 32

_MAGIC: Final = b"TSTG"
_LEAD: Final = struct.Struct("<4sHIIQ")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class StagedFile(NamedTuple):
    """What a task has staged; `name` is relative to the epoch's directory, and None where there were no rows."""

    name: str | None
    partition: int
    chunks: int
    records: int


class _Write(NamedTuple):
    """The body of one write, and how many records it holds."""

    topic: str
    records: int
    content: bytes


class Delivered(NamedTuple):
    """How many records of a manifest were appended, and how many the server already had."""

    records: int
    deduped: int


def local_path(option: str, text: str) -> Path:
    """A directory that an option names: a plain path, or a `file:` address."""
    match = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):", text)
    if match is None:
        return Path(text).absolute()
    if match[1].lower() != "file":
        raise SourceError(
            f'option "{option}" is "{text}": records are staged in a directory that driver and executors share; '
            f'set "stagingDir" to such a directory'
        )
    return Path("/" + text[5:].lstrip("/"))


class Stage:
    """The staging directory of one producer and epoch."""

    def __init__(self, root: Path, producer_id: str, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._producer_dir = root / _UNSAFE.sub("_", producer_id)
        self.directory = self._producer_dir / f"{epoch:012d}"
        self._manifest = self.directory / "manifest.json"
        self._done = self.directory / "done"

    def write(self, records: Iterable[Rendered], partition: int) -> StagedFile:
        """Stage the records of one task attempt."""
        name = f"part-{partition:06d}-{uuid.uuid4().hex}.staged"
        chunks = count = 0
        path = self.directory / name
        file = None
        try:
            for topic, n, body in _chunked(records):
                if file is None:
                    self.directory.mkdir(parents=True, exist_ok=True)
                    file = path.open("xb")
                label = topic.encode()
                file.write(_LEAD.pack(_MAGIC, len(label), n, len(body), xxh3_64_intdigest(body)))
                file.write(label)
                file.write(body)
                chunks += 1
                count += n
            if file is None:
                return StagedFile(None, partition, 0, 0)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise SourceError(f"records cannot be staged in {self.directory}: {error.strerror}") from None
        finally:
            if file is not None:
                file.close()
        _sync_directory(self.directory)
        return StagedFile(name, partition, chunks, count)

    def decide(self, files: Iterable[StagedFile]) -> list[StagedFile]:
        """The files of this epoch: these, unless an earlier manifest has decided already."""
        named = sorted((file for file in files if file.name is not None), key=lambda file: file.partition)
        manifest = {"producer_id": self.producer_id, "epoch": self.epoch, "files": [list(file) for file in named]}
        write_once(self._manifest, json.dumps(manifest))
        return [StagedFile(*file) for file in json.loads(self._manifest.read_text())["files"]]

    def is_done(self) -> bool:
        """Whether all of this epoch is known to be published."""
        return self._done.exists()

    def publish(self, files: list[StagedFile], client: Client, records_per_second: int | None = None) -> Delivered:
        """Append the chunks of these files in order, each once."""
        records = deduped = 0
        started = time.monotonic()
        # The next write is read and put together while the server works on one.
        with ThreadPoolExecutor(1) as pool:
            writes = self._writes(files)
            coming = pool.submit(next, writes, None)
            while (write := coming.result()) is not None:
                coming = pool.submit(next, writes, None)
                answer = client.write(write.topic, write.content)
                if answer["deduped"]:
                    deduped += write.records
                    continue
                records += write.records
                if records_per_second is not None:
                    time.sleep(max(0.0, started + records / records_per_second - time.monotonic()))
        self._done.touch()
        return Delivered(records, deduped)

    def _writes(self, files: list[StagedFile]) -> Iterator[_Write]:
        """The chunks of these files as numbered writes."""
        producer_id = json.dumps(self.producer_id).encode()
        producer_seq = self.epoch * CHUNKS_MAX
        for file in files:
            for topic, n, body in self._chunks(file):
                content = b'{"producer_id":%b,"producer_seq":%d,"records":[%b]}' % (producer_id, producer_seq, body)
                yield _Write(topic, n, content)
                producer_seq += 1

    def _chunks(self, file: StagedFile) -> Iterator[tuple[str, int, bytes]]:
        assert file.name is not None
        path = self.directory / file.name
        try:
            staged = path.open("rb")
        except FileNotFoundError:
            raise SourceError(
                f"the staged file {path} is not there: driver and executors must share this directory; "
                f'set the option "stagingDir" to one that they do'
            ) from None
        with staged:
            for _ in range(file.chunks):
                lead = staged.read(_LEAD.size)
                magic, label, n, size, checksum = _LEAD.unpack(lead) if len(lead) == _LEAD.size else (b"", 0, 0, 0, 0)
                topic, body = staged.read(label), staged.read(size)
                if magic != _MAGIC or len(body) != size or xxh3_64_intdigest(body) != checksum:
                    raise SourceError(f"the staged file {path} is damaged; nothing more of epoch {self.epoch} is sent")
                yield topic.decode(), n, body

    def forget_content(self) -> None:
        """Remove the staged files of a published epoch; that it was published stays known."""
        for path in self.directory.glob("*.staged"):
            path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove everything of this producer."""
        shutil.rmtree(self._producer_dir, ignore_errors=True)

    def forget_earlier(self) -> None:
        """Remove the earlier epochs, which Spark never asks for again once this one commits."""
        for directory in self._producer_dir.glob("[0-9]*"):
            if directory.name < self.directory.name:
                shutil.rmtree(directory, ignore_errors=True)


class _Chunk:
    """Records of one topic that wait to be a write."""

    __slots__ = ("n", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.n = self.size = 0

    def take(self, records: Rendered, first: int) -> int:
        """Add as many records as fit, from this one on; the number of the first that did not."""
        start = records.ends[first - 1] if first else 0
        most = min(len(records.ends), first + CHUNK_RECORDS - self.n)
        end = bisect_right(records.ends, start + CHUNK_BYTES - self.size, first, most)
        if end == first and not self.n:
            end += 1
        if end > first:
            self.pieces.append(records.text[start : records.ends[end - 1]])
            self.n += end - first
            self.size += len(self.pieces[-1])
        return end

    def body(self) -> memoryview:
        """The records, with commas between them."""
        return memoryview(b"".join(self.pieces))[:-1]


def _chunked(rendered: Iterable[Rendered]) -> Iterator[tuple[str, int, memoryview]]:
    """The records in writes of bounded size, each of one topic; the order within a topic is kept."""
    waiting: dict[str, _Chunk] = {}
    for records in rendered:
        at = 0
        while at < len(records.ends):
            chunk = waiting.setdefault(records.topic, _Chunk())
            at = chunk.take(records, at)
            if at < len(records.ends):
                yield records.topic, chunk.n, chunk.body()
                del waiting[records.topic]
    for topic, chunk in waiting.items():
        yield topic, chunk.n, chunk.body()


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
