"""The leases log: the events that a queue's leases are derived from (QUEUE-24).

A LEASE frame in the queue's shard of the WAL carries the msgpack of one event, which is about all jobs of one call.
Acks need no frame of their own: the DELETE frame that removes the jobs carries a list of `Acked` in its extra, so that
the acks and the delete cannot come apart. A DEAD_LETTER frame is both the delete and the copy, and is all or nothing
for the same reason. Events hold absolute values (deadline, deliveries, totals), never steps, so replaying one twice
changes nothing.
"""

from __future__ import annotations

import msgspec

Seqs = list[int]


class Claimed(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Jobs were leased to `node`: `seqs[i]` got the lease `first_id` + i and is delivered for the `deliveries[i]` time.

    `expired` are those of them that had a lease which ran out: that they were released is recorded here, lazily.
    """

    node: str
    seqs: Seqs
    deliveries: list[int]
    first_id: int
    deadline_ms: int
    ts: int
    expired: Seqs = []


class Released(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Jobs were given back, with a reason or none; they may be claimed from `due_ms` on, or each from its own time."""

    node: str
    seqs: Seqs
    due_ms: int
    ts: int
    reason: str = ""
    dues: list[int] = []


class Extended(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The leases of these jobs run until `deadline_ms`."""

    node: str
    seqs: Seqs
    deadline_ms: int
    ts: int


class Acked(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Jobs among those that the DELETE frame around it names were completed by `node`."""

    node: str
    seqs: Seqs
    ts: int


Event = Claimed | Released | Extended | Acked


class Buried(msgspec.Struct, array_like=True, frozen=True):
    """DEAD_LETTER: the jobs `seqs` left the queue for the topic `dest_id`; `block` is the Block of their copies there.

    `total` is the queue's `dead_lettered` after this move. `position` in `source_id` and `run` are those of the router
    into the destination at this moment, -1 without one. `lagging` are routers out of the queue, as in a delete, and so
    are `bound_head` and `evicted`: how far the queue's caps had come. `place` is that of the frame among the copies of
    a router into the queue: its next seq, position, source and run.
    """

    seqs: Seqs
    dest_id: int
    block: bytes
    total: int
    position: int = -1
    lagging: list[tuple[int, int]] = []
    source_id: int = 0
    run: tuple[int, int] | None = None
    bound_head: int = -1
    evicted: tuple[int, int] = (0, 0)
    place: tuple[int, int, int, tuple[int, int] | None] | None = None


class LeaseImage(msgspec.Struct, array_like=True, frozen=True):
    """A lease in a checkpoint: the first fields of a Lease, and what comes after them is passed over."""

    seq: int
    state: str
    node: str
    id: int
    due_ms: int
    deliveries: int


class LeasesImage(msgspec.Struct, array_like=True):
    """Some leases of a queue in a checkpoint, as they were at the time `ts`.

    `dates` are those by seq that delayed jobs wait for; every other `due_ms` is counted from `ts`, and is `ahead_ms`
    later in wall-clock time than it says.
    """

    leases: list[LeaseImage]
    ts: int
    ahead_ms: int
    dates: dict[int, int] = {}


class QueueImage(msgspec.Struct, array_like=True):
    """A queue in a checkpoint of the time `ts`. `reasons` are those by seq for which jobs were given back.

    The leases follow in pieces; those of an earlier version are here, as a LeasesImage has them.
    """

    fresh: int
    dead_lettered: int
    leases: list[LeaseImage]
    free: list[int]
    ts: int = 0
    dates: dict[int, int] = {}
    reasons: dict[int, str] = {}
    ahead_ms: int = 0


encode = msgspec.msgpack.Encoder().encode
# What a lease has to do with the stream of its worker ends with the process.
encode_image = msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode
decode = msgspec.msgpack.Decoder(Event).decode
decode_image = msgspec.msgpack.Decoder(QueueImage).decode
decode_leases = msgspec.msgpack.Decoder(LeasesImage).decode
decode_buried = msgspec.msgpack.Decoder(Buried).decode
