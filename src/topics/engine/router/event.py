"""What the WAL and checkpoints say about routers.

All frames are in a destination's shard, in order with its other frames. Each carries the position at that moment: the
source seq up to which records were copied (`position`), and the destination's next seq (`dest_seq`). Between two
positions nothing is logged: the copies follow from the source. A position names its source, because a loss of power may
leave a frame and take the one that changed the router. It may also take any other frame between two positions, and with
it records among the copies; so a position also says where the copies right before it began (`run`: the destination's
seq, and the source seq before the first of them).
"""

from __future__ import annotations

import msgspec

from topics.engine.router.router import Router, Rule


class RouterImage(msgspec.Struct, array_like=True, frozen=True):
    """A router: in a checkpoint, and as the first fields of a ROUTER_PUT. `filter` is JSON text."""

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

    @property
    def rule(self) -> Rule:
        """What the router does to a record."""
        fields = {name: getattr(self, name) for name in Rule.__struct_fields__}
        return Rule(**fields | {"filter": msgspec.json.decode(self.filter)})


def image_of(router: Router) -> RouterImage:
    """The image of a router as it is."""
    rule = router.rule
    return RouterImage(
        router.name,
        router.source.id,
        router.dest.id,
        rule.preserve_node,
        rule.preserve_tag,
        msgspec.json.encode(rule.filter),
        rule.allow_cycle,
        rule.guarantee,
        router.start_seq,
        router.created_ts,
    )


class Was(msgspec.Struct, array_like=True, frozen=True):
    """The ends that a router had until now, and the place of its last copies there."""

    source_id: int
    dest_id: int
    position: int
    dest_seq: int
    run: tuple[int, int] | None = None


class End(msgspec.Struct, array_like=True, frozen=True):
    """A topic that a router refers to, as its own frames may not be on disk yet. `config` is JSON text."""

    id: int
    name: str
    config: bytes
    created_ts: int


class Put(RouterImage, array_like=True, frozen=True):
    """ROUTER_PUT: from here on, a router is this.

    Where it had other ends before, this is one change and so one frame. It is in the shard of the destination that the
    router leaves, in order with what happens there, and has all that the router's new place needs. With the frame the
    router is at its new ends, without it at the old ones, whatever other shards have lost.
    """

    position: int
    dest_seq: int
    was: Was | None = None
    ends: list[End] = []
    run: tuple[int, int] | None = None


class Dropped(msgspec.Struct, array_like=True, frozen=True):
    """ROUTER_DROP: a router is gone. `source_id` is its source, 0 for whichever it is."""

    name: str
    position: int
    dest_seq: int
    source_id: int = 0
    run: tuple[int, int] | None = None


class Moved(msgspec.Struct, array_like=True, frozen=True):
    """CURSOR: a place between a router's copies where something happened that the source does not show.

    `lost` destination seqs stand for source records up to `cursor` that were lost before they were copied. `ts_min` is
    the time below which no copy from here on is dated. Where both are 0, it only marks the place of the frame after it.
    `source_id` is the topic that the source seqs are of, 0 for whichever is the source. No copy of the run is dated
    before `run_ts`: this is the time of the record before it, which may be lost.
    """

    position: int
    dest_seq: int
    cursor: int
    lost: int = 0
    ts_min: int = 0
    source_id: int = 0
    run: tuple[int, int] | None = None
    run_ts: int = 0


class ForwardImage(msgspec.Struct, array_like=True):
    """How far one destination has been served, in the same section as its records. `totals` is per router."""

    source_id: int
    cursor: int
    ts_min: int
    totals: dict[str, int]
    hops: list[tuple[int, int, int]]
    stamps: dict[str, int]


encode = msgspec.msgpack.Encoder().encode
decode_put = msgspec.msgpack.Decoder(Put).decode
decode_dropped = msgspec.msgpack.Decoder(Dropped).decode
decode_moved = msgspec.msgpack.Decoder(Moved).decode
decode_routers = msgspec.msgpack.Decoder(list[RouterImage]).decode
decode_forward = msgspec.msgpack.Decoder(ForwardImage).decode
