"""Publish: lines of input become records.

A line is one record. What can be read at once is sent at once, in batches of a bounded size, so that the lines of a
growing log are delivered as they come and a file goes through in large writes. Each batch has an idempotency key of its
own: if a connection breaks, so that it is unknown whether a batch arrived, it is sent again and stored once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from topics.client.link import PATIENCE_S, Link, ServerError
from topics.client.options import ClientError

READ_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 1_000
BATCH_BYTES: Final = 4 << 20
"""A batch is sent once it has reached this; one line may be larger."""
LINE_MAX_BYTES: Final = 64 << 20
"""The largest body that a server takes by default."""


class BadLine(ClientError):
    """A line that cannot be a record."""


class _Ack(msgspec.Struct):
    first_seq: int
    last_seq: int


@dataclass
class Published:
    """What has been stored so far."""

    records: int = 0
    first_seq: int = 0
    last_seq: int = 0


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
    """Writes records to one topic."""

    def __init__(self, client: Link, topic: str, *, text: bool, tag: str | None, node: str | None) -> None:
        self._client = client
        self._path = f"/v0/topics/{quote(topic, safe='')}?return_seqs=false"
        self._text = text
        labels = {"tag": tag, "node": node}
        self._tail = b"".join(
            b',"%b":%b' % (name.encode(), msgspec.json.encode(value))
            for name, value in labels.items()
            if value is not None
        )
        self._run = uuid.uuid4().hex
        self._batches = 0
        self._line = 0
        self.published = Published()

    def publish(self, arriving: Iterable[list[bytes]]) -> None:
        """Store every line. Raises BadLine or ServerError; what `published` counts is stored nevertheless."""
        for lines in arriving:
            batch: list[bytes] = []
            size = 0
            for line in lines:
                self._line += 1
                record = self._record(line.removesuffix(b"\r"))
                if record is None:
                    continue
                batch.append(record)
                size += len(record)
                if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES:
                    self._send(batch)
                    batch, size = [], 0
            if batch:
                self._send(batch)

    def _record(self, line: bytes) -> bytes | None:
        try:
            decoded = line.decode()
        except UnicodeDecodeError as error:
            raise BadLine(f"line {self._line:,} is not UTF-8 (byte {error.start})") from None
        if self._text:
            data = msgspec.json.encode(decoded)
        elif not decoded.strip():
            return None
        else:
            try:
                # A line that is not JSON could otherwise end its record and begin another.
                msgspec.json.decode(line, type=msgspec.Raw)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadLine(
                    f"line {self._line:,} is not JSON: {error}; with --text each line is sent as a string"
                ) from None
            data = line
        return b'{"data":%b%b}' % (data, self._tail)

    def _send(self, batch: list[bytes]) -> None:
        self._batches += 1
        body = b'{"idempotency_key":"%b-%d","records":[%b]}' % (self._run.encode(), self._batches, b",".join(batch))
        # A server that was never reached is reported at once; one that was reached may be restarting.
        patience_s = PATIENCE_S if self.published.records else 0.0
        try:
            ack = msgspec.json.decode(self._client.call("POST", self._path, body, patience_s=patience_s), type=_Ack)
        except msgspec.DecodeError:
            raise ServerError("the answer is not from a topics server") from None
        self.published.records += len(batch)
        self.published.first_seq = self.published.first_seq or ack.first_seq
        self.published.last_seq = ack.last_seq
