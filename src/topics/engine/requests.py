"""The shapes of request bodies, as msgspec structs: JSON in, typed fields out, `data` and `meta` left as raw text.

Decoding checks types; the engine checks limits and meaning. Unknown fields are ignored, so that a client may be newer
than the server (HTTP-15).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from topics.engine.config import ConfigPatch

U64 = Annotated[int, Meta(ge=0)]
U53 = Annotated[int, Meta(ge=0, le=2**53)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]

NODES_MAX: Final = 1000
Nodes = str | Annotated[list[str], Meta(max_length=NODES_MAX)] | None
"""One node, or several, whose records a reader does not want."""

NO_RAW: Final = Raw(b"")


class RecordIn(Struct, gc=False):
    """One record of a write."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = NO_RAW
    delay_ms: U53 | None = None
    deliver_at: U53 | None = None


class Write(Struct):
    """The body of `POST /v0/topics/:topic` (the WRITE rules)."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigPatch | None = None
    disable_backpressure: bool = False
    producer_id: str | None = None
    producer_seq: U64 | None = None
    expected_head_seq: U64 | None = None

    @staticmethod
    def of(datas: Iterable[Any], **fields: Any) -> Write:
        """A write of plain records with these Python values as data: for embedded use and tests."""
        return Write([RecordIn(Raw(msgspec.json.encode(data))) for data in datas], **fields)


class Diff(Struct):
    """The body of `POST /v0/topics/:topic/diff` (the READ rules)."""

    from_seq: U64 = 0
    limit: U32 = 0
    node: Nodes = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: U32 = 0
    max_batch_bytes: U64 = 0
    from_ts: U64 | None = None
    match: Any = None


class Delete(Struct):
    """The body of `POST /v0/topics/:topic/delete` (the DELETE rules)."""

    before_seq: U64 | None = None
    match: Any = None
    dry_run: bool = False
