"""`topics publish`: lines of input become records.

A line is one record. What can be read at once is sent at once, in batches of a bounded size, so that the lines of a
growing log are delivered as they come and a file goes through in large writes. If a connection breaks, so that it is
unknown whether a batch arrived, it is sent again and stored once.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from topics.client.operations.write import WriteOptions
from topics.client.record import Draft
from topics.commands.failures import CommandError
from topics.commands.link import Link, connected
from topics.commands.progress import progress
from topics.commands.spans import span_ms
from topics.commands.table import counted, print_json
from topics.commands.topic_names import TopicName

READ_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 1_000
BATCH_BYTES: Final = 4 << 20
"""A batch is sent once it has reached this; one line may be larger."""
LINE_MAX_BYTES: Final = 64 << 20
"""The largest body that a server takes by default."""


class BadLine(CommandError):
    """A line that cannot be a record."""


@dataclass
class Published:
    """What has been stored so far."""

    topic: str
    records: int = 0
    first_seq: int = 0
    last_seq: int = 0
    created: bool = False

    def __str__(self) -> str:
        seqs = f"seq {self.last_seq}" if self.records == 1 else f"seqs {self.first_seq} to {self.last_seq}"
        topic = f"the new topic {self.topic}" if self.created else self.topic
        return f"published {counted(self.records, 'record')} to {topic}: {seqs}"


@connected
def publish(
    link: Link,
    topic: TopicName,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA", help="Records as JSON; without any, each line of the input is one.", show_default=False
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Send each record as a string, whatever it holds.")] = False,
    tag: Annotated[str | None, typer.Option(help="The tag of each record.")] = None,
    node: Annotated[str | None, typer.Option(help="The node of each record.")] = None,
    delay: Annotated[
        int | None,
        typer.Option(parser=span_ms, metavar="TIME", help="In a queue: deliver the jobs this much later, such as 10m."),
    ] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="Fail if the topic does not exist, instead of creating it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stored as JSON.")] = False,
) -> None:
    """Append records to a topic.

    A topic that does not exist is created. After a lost connection records are sent again, and stored once.
    """
    publisher = Publisher(link, topic, text=text, tag=tag, node=node, delay_ms=delay, create=not existing)
    if not data and sys.stdin.isatty():
        typer.echo("one record per line, as JSON unless --text is given; end with Ctrl-D", err=True)
    size = None if data else _size(sys.stdin.fileno())
    shown = not data and not sys.stdin.isatty()
    try:
        with progress(f"publishing to {topic}", size, shown=shown, is_bytes=size is not None) as step:
            if size is None:
                publisher.on_sent = lambda: step(publisher.published.records)
            else:
                publisher.on_sent = lambda: step(publisher.bytes_read)
            publisher.publish([[each.encode() for each in data]] if data else lines_of(sys.stdin.fileno()))
    finally:
        done = publisher.published
        if as_json:
            print_json(done)
        else:
            typer.echo(str(done) if done.records else "nothing was published", err=True)


def _size(descriptor: int) -> int | None:
    """How large the input is, where it is a file."""
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def lines_of(descriptor: int) -> Iterator[list[bytes]]:
    """The lines of a file as they come, without line ends; a last line without an end counts too."""
    rest = bytearray()
    while chunk := os.read(descriptor, READ_BYTES):
        end = chunk.rfind(b"\n")
        if end < 0:
            rest += chunk
            if len(rest) > LINE_MAX_BYTES:
                raise BadLine(f"a line is longer than {LINE_MAX_BYTES:,} bytes: no server takes it")
            continue
        yield (bytes(rest) + chunk[:end]).split(b"\n")
        rest = bytearray(chunk[end + 1 :])
    if rest:
        yield [bytes(rest)]


class Publisher:
    """Writes records to one topic; `on_sent` is called after each batch."""

    def __init__(
        self,
        link: Link,
        topic: str,
        *,
        text: bool,
        tag: str | None,
        node: str | None,
        delay_ms: int | None,
        create: bool,
    ) -> None:
        self._link = link
        self._now = link.now.topic(topic)
        self._text = text
        self._options: WriteOptions = {} if create else {"create": False}
        self._labels: dict[str, Any] = {"tag": tag, "node": node, "delay_ms": delay_ms}
        self._line = 0
        self.bytes_read = 0
        self.published = Published(topic)
        self.on_sent: Callable[[], None] = lambda: None

    def publish(self, arriving: Iterable[list[bytes]]) -> None:
        """Store every line. Raises BadLine or TopicsError; what `published` counts is stored nevertheless."""
        for lines in arriving:
            batch: list[Draft[Any]] = []
            size = 0
            for line in lines:
                self._line += 1
                self.bytes_read += len(line) + 1
                record = self._record(line.removesuffix(b"\r"))
                if record is None:
                    continue
                batch.append(record)
                size += len(line)
                if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES:
                    self._send(batch)
                    batch, size = [], 0
            if batch:
                self._send(batch)

    def _record(self, line: bytes) -> Draft[Any] | None:
        try:
            decoded = line.decode()
        except UnicodeDecodeError as error:
            raise BadLine(f"line {self._line:,} is not UTF-8 (byte {error.start})") from None
        if self._text:
            return Draft(data=decoded, **self._labels)
        if not decoded.strip():
            return None
        try:
            # A line that is not JSON could otherwise end its record and begin another.
            raw = msgspec.json.decode(line, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadLine(
                f"line {self._line:,} is not JSON: {error}; with --text each line is sent as a string"
            ) from None
        return Draft(data=raw, **self._labels)

    def _send(self, batch: list[Draft[Any]]) -> None:
        # A server that was never reached is reported at once; one that was reached may be restarting.
        done = self.published
        topic = self._link.patient.topic(done.topic) if done.records else self._now
        written = topic.write_many(batch, **self._options)
        done.records += len(batch)
        done.first_seq = done.first_seq or written.first_seq
        done.created = done.created or written.created
        done.last_seq = written.last_seq
        self.on_sent()
