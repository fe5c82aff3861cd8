"""Tracing: the trace context of a write is kept with its records, where the operator asks for that (LOG-5).

A consumer goes on with the trace that the producer began: it finds the `traceparent` of the request in the meta of the
record, unless the producer gave the record one of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from topics.engine.meta import with_fields
from topics.engine.requests import RecordIn

TRACEPARENT: Final = "traceparent"


def trace(records: Iterable[RecordIn], traceparent: str) -> None:
    """Keep the trace context in the meta of each record that has none of its own."""
    for record in records:
        meta = bytes(record.meta) or None
        if meta is None or (meta.lstrip().startswith(b"{") and b'"traceparent"' not in meta):
            # Where `meta` is not what it must be, the write is refused for it.
            with contextlib.suppress(msgspec.MsgspecError):
                record.meta = msgspec.Raw(with_fields(meta, {TRACEPARENT: traceparent}))
