"""The operations on the records of a topic."""

from __future__ import annotations

from typing import Final

from topics.engine.requests import Delete, Diff, Write
from topics.engine.state import Deleted
from topics.engine.write.batch import KEY_CHARS_MAX
from topics.errors import BatchTooLarge, HeadMismatch, RecordTooLarge, TopicFull, TopicNotFound
from topics.server.api.blocks import BYTES_DEFAULT, BYTES_MAX, GAPS_MAX, LIMIT_MAX
from topics.server.api.shapes import BlocksHeader, Plan
from topics.server.openapi.operation import CHANGING, READING, Answer, Operation, Parameter, flag, whole
from topics.server.openapi.shapes import Read, Written

GROUP: Final = "Records"

_WRITTEN: Final = {
    "topic": "orders",
    "first_seq": 1,
    "last_seq": 1,
    "seqs": [1],
    "head_seq": 1,
    "count": 1,
    "created": True,
    "deduped": False,
    "performance": {"server_total_ms": 0.094, "wal_append_ms": 0.016, "fsync_ms": 0.0, "throttle_wait_ms": 0.0},
}
_READ: Final = {
    "topic": "orders",
    "records": [{"$seq": 1, "$ts": 1767225600000, "$tag": "customer:7", "data": {"order": 4711, "total": 99.5}}],
    "next_from_seq": 1,
    "head_seq": 1,
    "earliest_seq": 1,
    "caught_up": True,
    "tombstone": None,
    "lag": 0,
    "performance": {"server_total_ms": 0.041, "records_scanned": 1, "throttle_wait_ms": 0.0},
}
_FROM: Final = Parameter("from_seq", "After this seq.", whole(default=0))
_TO: Final = Parameter("to_seq", "Up to this seq; by default to the head.", whole())

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v0/topics/:topic"): Operation(
        id="write",
        group=GROUP,
        summary="Append records",
        text="A write is atomic and its seqs are contiguous. It creates the topic unless it forbids that.",
        body=Write,
        example={"records": [{"data": {"order": 4711, "total": 99.5}, "tag": "customer:7"}]},
        parameters=(
            Parameter("return_seqs", "False leaves the list of seqs out of the answer.", flag(True)),
            Parameter(
                "Idempotency-Key",
                "The same as `idempotency_key` in the body, which counts where both are given.",
                {"type": "string", "maxLength": KEY_CHARS_MAX},
                place="header",
            ),
        ),
        answers={
            200: (Answer("Appended, or a retry of what was appended before.", Written),),
            201: (Answer("Appended, and the topic was created.", Written, _WRITTEN),),
        },
        errors=(TopicNotFound, BatchTooLarge, RecordTooLarge, HeadMismatch, TopicFull, *CHANGING),
    ),
    ("POST", "/v0/topics/:topic/diff"): Operation(
        id="diff",
        group=GROUP,
        summary="Read the records after a cursor",
        text="Deleted records and the reader's own are skipped silently, so rely on `caught_up` and not on an empty "
        "list. What was lost before it was read is reported once, in `tombstone`.",
        body=Diff,
        body_required=False,
        example={"from_seq": 0, "limit": 100, "include_tags": True},
        answers={200: (Answer("The records.", Read, _READ),)},
        errors=READING,
    ),
    ("POST", "/v0/topics/:topic/delete"): Operation(
        id="deleteRecords",
        group=GROUP,
        summary="Delete records permanently",
        text="With `before_seq` and `match`, a record must satisfy both. One of them is needed.",
        body=Delete,
        body_required=False,
        example={"match": "customer:7"},
        answers={
            200: (
                Answer(
                    "The records are gone for every reader.",
                    Deleted,
                    {
                        "topic": "orders",
                        "deleted": 1,
                        "earliest_seq": 2,
                        "head_seq": 1,
                        "count": 0,
                        "bytes": 0,
                        "performance": {"server_total_ms": 0.1, "wal_append_ms": 0.015, "fsync_ms": 0.0},
                    },
                ),
            )
        },
        errors=(*READING, *CHANGING),
    ),
    ("GET", "/v0/topics/:topic/blocks"): Operation(
        id="blocks",
        group=GROUP,
        summary="Read records as binary Blocks",
        text="For scans of much: `TBKS`, the length of the header (4 bytes, little-endian), the header as JSON, then "
        "Blocks. The Spark source reads this; the format is in storage-format.md.",
        parameters=(
            _FROM,
            _TO,
            Parameter("limit", f"The most records, at most {LIMIT_MAX}.", whole(least=1, default=LIMIT_MAX)),
            Parameter("bytes", f"The most bytes, at most {BYTES_MAX}.", whole(least=1, default=BYTES_DEFAULT)),
        ),
        answers={
            200: (
                Answer(
                    "The Blocks.",
                    content_type="application/octet-stream",
                    schema={"type": "string", "format": "binary"},
                ),
            )
        },
        errors=READING,
        header=BlocksHeader,
    ),
    ("GET", "/v0/topics/:topic/plan"): Operation(
        id="plan",
        group=GROUP,
        summary="What a scan has to know before it starts",
        parameters=(
            Parameter("from_seq", f"With this, `gaps` lists what was lost after it, at most {GAPS_MAX}.", whole()),
            Parameter("to_seq", "Up to this seq; by default to the head.", whole()),
            Parameter("from_ts", "A time to resolve to a seq, in milliseconds since 1970.", whole()),
            Parameter("to_ts", "Another one.", whole()),
            Parameter("deleted", "True lists the runs of seqs that clients deleted.", flag(False)),
            Parameter("segments", "True lists the sealed segments.", flag(False)),
        ),
        answers={
            200: (
                Answer(
                    "The plan.",
                    Plan,
                    {
                        "topic": "orders",
                        "epoch": 1,
                        "head_seq": 1,
                        "earliest_seq": 1,
                        "evict_floor": 1,
                        "count": 1,
                        "bytes": 63,
                        "lost": [],
                        "performance": {"server_total_ms": 0.03},
                    },
                ),
            )
        },
        errors=READING,
    ),
}
