"""What frames hold besides the records: AppendExtra after the Block of an APPEND, DeleteExtra in a DELETE.

Retries stay safe after a restart because their keys are here; and for a topic that copies are forwarded into, their
place is here, so that a restart puts them between the same records again.
"""

from __future__ import annotations

import msgspec


class AppendExtra(msgspec.Struct, array_like=True, frozen=True):
    """The idempotency key and the producer's number of one write; fields are only ever added at the end."""

    idempotency_key: str | None = None
    producer_id: str | None = None
    producer_seq: int = 0
    # Into a topic that takes derived records: the source seq up to which they were there, -1 without a router.
    position: int | None = None
    # (index, due_ms) of each job that is hidden until then.
    delays: list[tuple[int, int]] | None = None
    # The source that `position` is about, 0 without a router.
    source_id: int = 0
    # Which of `delays` are dates; the others are counted from the time of their record.
    dated: list[int] | None = None
    # Where the copies right before these records began: (seq of the topic, source seq before the first of them).
    run: tuple[int, int] | None = None


class DeleteExtra(msgspec.Struct, array_like=True, frozen=True):
    """The place of a delete among derived records.

    `next_seq`, `position` in `source_id` and `run` place it in a topic that takes them (0: it takes none). `lagging`
    are (destination id, cursor) of routers out of the topic that had not forwarded everything: what is deleted after
    their cursor was never copied. `acked` are the events of the leases log where the delete is an ack.
    """

    next_seq: int = 0
    position: int = -1
    lagging: list[tuple[int, int]] = []
    acked: bytes = b""
    source_id: int = 0
    run: tuple[int, int] | None = None


decode_delete = msgspec.msgpack.Decoder(DeleteExtra).decode
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AppendExtra).decode
