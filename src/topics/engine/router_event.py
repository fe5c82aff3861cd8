"""What the WAL says about routers. All of it stands in the destination's shard, in order with its other frames.

Each carries the position at that moment: the source seq up to which records were forwarded (`position`), and the
destination's next seq (`dest_seq`). Between two positions nothing is logged: the copies follow from the source.
"""

from __future__ import annotations

import msgspec


class Put(msgspec.Struct, array_like=True, frozen=True):
    """ROUTER_PUT: a router is, from here on, this. `filter` is JSON text."""

    name: str
    source_id: int
    dest_id: int
    preserve_node: bool
    preserve_tag: bool
    filter: bytes
    allow_cycle: bool
    guarantee: str
    start_seq: int
    created_ts: int
    position: int
    dest_seq: int


class Dropped(msgspec.Struct, array_like=True, frozen=True):
    """ROUTER_DROP: a router is no more."""

    name: str
    position: int
    dest_seq: int


class Moved(msgspec.Struct, array_like=True, frozen=True):
    """CURSOR: the place between a router's copies at which something happened that the source does not tell.

    `lost` destination seqs stand for source records up to `cursor` that are gone before they were forwarded. `ts_min`
    is the time below which no copy from here on is dated. Where neither says anything, it only marks the place of the
    frame behind it.
    """

    position: int
    dest_seq: int
    cursor: int
    lost: int = 0
    ts_min: int = 0


class RouterImage(msgspec.Struct, array_like=True):
    """One router in a checkpoint."""

    name: str
    source_id: int
    dest_id: int
    preserve_node: bool
    preserve_tag: bool
    filter: bytes
    allow_cycle: bool
    guarantee: str
    start_seq: int
    created_ts: int


class ForwardImage(msgspec.Struct, array_like=True):
    """How far one destination has been served, in the same section as its records. `totals` is per router."""

    source_id: int
    cursor: int
    ts_min: int
    totals: dict[str, int]
    hops: list[tuple[int, int, int]]
    keys: dict[str, int]


encode = msgspec.msgpack.Encoder().encode
decode_put = msgspec.msgpack.Decoder(Put).decode
decode_dropped = msgspec.msgpack.Decoder(Dropped).decode
decode_moved = msgspec.msgpack.Decoder(Moved).decode
decode_routers = msgspec.msgpack.Decoder(list[RouterImage]).decode
decode_forward = msgspec.msgpack.Decoder(ForwardImage).decode
