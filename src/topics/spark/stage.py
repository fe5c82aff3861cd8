"""Staging: what makes a write exactly-once although tasks are retried, duplicated and killed.

A task that is run again after a shuffle may yield the same rows in another order, or cut into other partitions, so no
key derived from a task can tell what was already written. Therefore:

1. A task publishes nothing. It writes its records, ready for the wire, into a file of its own and names it in its
   commit message. Attempts that fail, and the slower of two speculative ones, leave files that no message names.
2. The driver writes the list of files as the manifest of (producer, epoch). The first manifest wins, as the depot
   decides. A replayed batch or a second driver takes the one that is there.
3. The driver publishes the chunks of the manifest in order, under `producer_id` and `producer_seq` = epoch and number
   of the chunk. The server drops what it already has, however long ago that was.

So the records of an epoch are decided once, at step 2, and appended once, at step 3. Nothing is deleted before the
next epoch commits: Spark may call `abort` for a batch that was published.

A staged file is a sequence of chunks: magic, bytes of the topic's name, records, bytes of the records, XXH3-64 of
them; then the name and the records as JSON objects with commas between them.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.spark.client import Client
from topics.spark.depot import Depot, plain
from topics.spark.errors import SourceError
from topics.spark.rows import Rendered

CHUNK_RECORDS: Final = 2_000
CHUNK_BYTES: Final = 240 << 10
"""The server takes a body of up to 256 KiB in one piece, and a third cheaper than a larger one."""
CHUNKS_MAX: Final = 1 << 32
MANIFEST: Final = "manifest.json"
DONE: Final = "done"
STAGED: Final = ".staged"

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


class Stage:
    """What is staged of one producer and epoch."""

    def __init__(self, root: Depot, producer_id: str, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._producer = root.below(_UNSAFE.sub("_", producer_id))
        self._name = f"{epoch:012d}"
        self._depot = self._producer.below(self._name)

    def write(self, records: Iterable[Rendered], partition: int) -> StagedFile:
        """Stage the records of one task attempt."""
        name = f"part-{partition:06d}-{uuid.uuid4().hex}{STAGED}"
        chunks = count = 0
        file: Any = None
        try:
            with contextlib.ExitStack() as stack:
                for topic, n, body in _chunked(records):
                    if file is None:
                        file = stack.enter_context(self._depot.create(name))
                    label = topic.encode()
                    file.write(_LEAD.pack(_MAGIC, len(label), n, len(body), xxh3_64_intdigest(body)))
                    file.write(label)
                    file.write(body)
                    chunks += 1
                    count += n
        except OSError as error:
            raise SourceError(f"records cannot be staged in {self._depot}: {plain(error)}") from None
        return StagedFile(None if file is None else name, partition, chunks, count)

    def decide(self, files: Iterable[StagedFile]) -> list[StagedFile]:
        """The files of this epoch: these, unless an earlier manifest has decided already."""
        named = sorted((file for file in files if file.name is not None), key=lambda file: file.partition)
        manifest = {"producer_id": self.producer_id, "epoch": self.epoch, "files": [list(file) for file in named]}
        decided = self._depot.decide(MANIFEST, json.dumps(manifest))
        return [StagedFile(*file) for file in json.loads(decided)["files"]]

    def is_done(self) -> bool:
        """Whether all of this epoch is known to be published."""
        return self._depot.has(DONE)

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
        self._depot.mark(DONE)
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
        path = f"{self._depot}/{file.name}"
        try:
            opened = self._depot.open(file.name)
        except FileNotFoundError:
            raise SourceError(
                f"the staged file {path} is not there: driver and executors must share this directory; set the option "
                f'"stagingDir" to one that they do, or to an address in an object store such as s3://bucket/staging'
            ) from None
        with opened as staged:
            for _ in range(file.chunks):
                lead = staged.read(_LEAD.size)
                magic, label, n, size, checksum = _LEAD.unpack(lead) if len(lead) == _LEAD.size else (b"", 0, 0, 0, 0)
                topic, body = staged.read(label), staged.read(size)
                if magic != _MAGIC or len(body) != size or xxh3_64_intdigest(body) != checksum:
                    raise SourceError(f"the staged file {path} is damaged; nothing more of epoch {self.epoch} is sent")
                yield topic.decode(), n, body

    def forget_content(self) -> None:
        """Remove the staged files of a published epoch; that it was published stays known."""
        self._depot.clear(STAGED)

    def forget(self) -> None:
        """Remove everything of this producer."""
        self._producer.remove()

    def forget_earlier(self) -> None:
        """Remove the earlier epochs, which Spark never asks for again once this one commits."""
        for name in self._producer.directories():
            if name < self._name:
                self._producer.below(name).remove()


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
