"""Writing: the body of a write, and the one call that appends it.

The text of a record is made when it is given, so that what the caller changes later does not change what is written,
and what cannot be JSON is refused where it was given. A write carries an idempotency key unless the caller turns that
off, therefore it can be sent again after a lost connection, and is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec

from topics.client.answers import Written, decode
from topics.client.calling import Patience, call
from topics.client.keys import next_key
from topics.client.operation import Operation
from topics.client.record import Draft
from topics.client.transport.request import Request

_encode: Final = msgspec.json.Encoder().encode


class WriteOptions(TypedDict, total=False):
    """What a write may ask for.

    - `idempotency_key`: a key of your own, so that a program that was restarted may write again; None for no key, which
      makes a write that is never sent twice.
    - `expected_head_seq`: append only if the topic's head is this one, otherwise HeadMismatch.
    - `create`: False to get TopicNotFound where the topic does not exist; `config`: its config if the write creates it.
    - `disable_backpressure`: wait under load instead of being asked to come back.
    """

    idempotency_key: str | None
    expected_head_seq: int
    create: bool
    config: Mapping[str, Any]
    disable_backpressure: bool


def record_text(
    data: Any,
    tag: str | None = None,
    node: str | None = None,
    meta: Mapping[str, Any] | None = None,
    delay_ms: int | None = None,
    deliver_at: int | None = None,
) -> bytes:
    """A record as it goes over the wire."""
    if tag is None and node is None and meta is None and delay_ms is None and deliver_at is None:
        return b'{"data":%b}' % _encode(data)
    return _encode(Draft(data=data, tag=tag, node=node, meta=meta, delay_ms=delay_ms, deliver_at=deliver_at))


def item_text(item: Any) -> bytes:
    """A Draft, or the data of one, as it goes over the wire."""
    return _encode(item) if isinstance(item, Draft) else b'{"data":%b}' % _encode(item)


def write(target: bytes, records: Sequence[bytes], patience: Patience, options: WriteOptions) -> Operation[Written]:
    """Append records, given as texts."""
    texts = records[0] if len(records) == 1 else b",".join(records)
    repeatable = True
    if not options:
        body = b'{"idempotency_key":"%b","records":[%b]}' % (next_key().encode(), texts)
    else:
        fields: dict[str, Any] = {"idempotency_key": None, **options}
        if "idempotency_key" not in options:
            fields["idempotency_key"] = next_key()
        repeatable = fields["idempotency_key"] is not None
        body = b'%b,"records":[%b]}' % (_encode(fields)[:-1], texts)
    answer = yield from call(Request(b"POST", target, body, repeatable=repeatable), patience)
    return decode(answer, Written)
