"""AppendExtra: what rides in an APPEND frame behind its Block, so that retries stay safe after a restart."""

from __future__ import annotations

import msgspec


class AppendExtra(msgspec.Struct, array_like=True, frozen=True):
    """The idempotency key and the producer's number of one write; fields are only ever added at the end."""

    idempotency_key: str | None = None
    producer_id: str | None = None
    producer_seq: int = 0


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AppendExtra).decode
