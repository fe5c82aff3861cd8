"""What the WAL says about routers. All of it stands in a destination's shard, in order with its other frames.

Each carries the position at that moment: the source seq up to which records were forwarded (`position`), and the
destination's next seq (`dest_seq`). Between two positions nothing is logged: the copies follow from the source. A
position says which source it is in: a loss of power may leave a frame and take the one that changed the router.
"""

from __future__ import annotations

import msgspec


class Was(msgspec.Struct, array_like=True, frozen=True):
    """The ends that a router had until now, and the place of its last copies there."""

    source_id: int
    dest_id: int
    position: int
    dest_seq: int


class End(msgspec.Struct, array_like=True, frozen=True):
    """A topic that a router refers to and whose own frames may not be on the disk yet; `config` is JSON text."""

    id: int
    name: str
    config: bytes
    created_ts: int


class Put(msgspec.Struct, array_like=True, frozen=True):
    """ROUTER_PUT: a router is, from here on, this. `filter` is JSON text.

    Where it had other ends before, this is one change and so one frame: it stands in the shard of the destination that
    the router leaves, in order with what happens there, and holds all that its new place needs. Whoever has the frame
    has the router at its new ends, whoever has not has it at the old ones, whatever other shards have lost.
    """

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
    was: Was | None = None
    ends: list[End] = []


class Dropped(msgspec.Struct, array_like=True, frozen=True):
    """ROUTER_DROP: a router is no more. `source_id` is its source, 0 for whichever."""

    name: str
    position: int
    dest_seq: int
    source_id: int = 0


class Moved(msgspec.Struct, array_like=True, frozen=True):
    """CURSOR: the place between a router's copies at which something happened that the source does not tell.

    `lost` destination seqs stand for source records up to `cursor` that are gone before they were forwarded. `ts_min`
    is the time below which no copy from here on is dated. Where neither says anything, it only marks the place of the
    frame behind it. `source_id` says which topic these seqs are of, 0 for whichever is the source.
    """

    position: int
    dest_seq: int
    cursor: int
    lost: int = 0
    ts_min: int = 0
    source_id: int = 0


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
