"""Write: the body of a write, and the one call that appends it.

The text of a record is made when it is given, so that what the caller changes later does not change what is written,
and what cannot be JSON is refused where it was given. A write carries an idempotency key, or a number (`identity`),
unless the caller turns that off, therefore it can be sent again after a lost connection, and is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

import msgspec

from topics.client.answers import Written, decode
from topics.client.operations.call import Patience, call
from topics.client.operations.identity import Lanes
from topics.client.operations.operation import Operation
from topics.client.operations.unique_names import next_key
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
    deliver_at: int | datetime | None = None,
) -> bytes:
    """A record as it goes over the wire."""
    if tag is None and node is None and meta is None and delay_ms is None and deliver_at is None:
        return b'{"data":%b}' % _encode(data)
    return _encode(Draft(data=data, tag=tag, node=node, meta=meta, delay_ms=delay_ms, deliver_at=deliver_at))


def item_text(item: Any) -> bytes:
    """A Draft, or the data of one, as it goes over the wire."""
    return _encode(item) if isinstance(item, Draft) else b'{"data":%b}' % _encode(item)


def write(
    target: bytes, records: Sequence[bytes], patience: Patience, options: WriteOptions, lanes: Lanes | None = None
) -> Operation[Written]:
    """Append records, given as texts; without a key of their own they get one, or a number out of `lanes`."""
    texts = records[0] if len(records) == 1 else b",".join(records)
    if "idempotency_key" in options:
        repeatable = options["idempotency_key"] is not None
        request = Request(
            b"POST", target, b'%b,"records":[%b]}' % (_encode(options)[:-1], texts), repeatable=repeatable
        )
        return decode((yield from call(request, patience)), Written)
    lane = None if lanes is None else lanes.take()
    if lane is None:
        opening = b'{"idempotency_key":"%b"' % next_key().encode()
    else:
        opening = b'{"producer_id":"%b","producer_seq":%d' % (lane.producer_id.encode(), lane.number)
    if options:
        opening += b"," + _encode(options)[1:-1]
    request = Request(b"POST", target, b'%b,"records":[%b]}' % (opening, texts))
    try:
        answer = yield from call(request, patience, noticed=None if lanes is None else lanes.noticed)
    finally:
        if lane is not None and lanes is not None:
            lanes.give(lane)
    return decode(answer, Written)
