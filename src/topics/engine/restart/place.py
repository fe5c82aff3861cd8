"""Place: where a frame was among the derived records of its topic.

A frame of a topic that takes derived records says so itself: the topic's next seq at that moment, and the position, the
source seq up to which its router had copied. A position is one in a certain source, and says nothing where the topic's
source is another one: a loss of power may have taken the frame that changed the router.
"""

from __future__ import annotations

from typing import Final

from topics.engine.queue import event as lease_event
from topics.engine.router import event as router_event
from topics.engine.topic import Topic
from topics.engine.write import extra as extras
from topics.storage.wal import frame as frames
from topics.storage.wal.reader import Appended, Control

Event = Appended | Control
ANYWHERE: Final = (0, -1)


def place_of(topic: Topic, event: Event) -> tuple[int, int]:
    """(The topic's next seq, the position of its router), -1 for any position; ANYWHERE where it does not matter."""
    if isinstance(event, Appended):
        for first_seq, _, data in event.extras:
            if first_seq == event.block.first_seq:
                extra = extras.decode(data)
                if extra.position is not None:
                    return first_seq, position_in(topic, extra.position, extra.source_id)
        # Where it says nothing of a router that is there, the frame that took the router away is lost.
        return ANYWHERE if topic.inbound is None else (event.block.first_seq, -1)
    kind, payload = event.kind, event.payload
    if kind == frames.DELETE and payload.extra:
        deleted = extras.decode_delete(payload.extra)
        return deleted.next_seq, position_in(topic, deleted.position, deleted.source_id)
    if kind == frames.ROUTER_PUT:
        put = router_event.decode_put(payload)
        # One that comes from elsewhere is in another shard, and waits for nothing that this one has still to say.
        return (put.dest_seq, position_in(topic, put.position, put.source_id)) if put.was is None else ANYWHERE
    if kind in (frames.CURSOR, frames.ROUTER_DROP):
        decode = router_event.decode_moved if kind == frames.CURSOR else router_event.decode_dropped
        moved = decode(payload)
        return moved.dest_seq, position_in(topic, moved.position, moved.source_id)
    return ANYWHERE


def position_in(topic: Topic, position: int, source_id: int) -> int:
    """A position, if it is one in the topic's source as far as that is known; otherwise -1. 0 is any source."""
    return position if topic.inbound is None or source_id in (0, topic.inbound.source.id) else -1


def deleted_by(event: Control) -> tuple[frames.Deletion, dict[int, int]] | None:
    """What a frame deletes, and the cursors of the routers that had not seen all of it, by destination."""
    if event.kind == frames.DELETE:
        delete: frames.Deletion = event.payload
        return delete, dict(extras.decode_delete(delete.extra).lagging) if delete.extra else {}
    if event.kind == frames.DEAD_LETTER:
        buried = lease_event.decode_buried(event.payload)
        return frames.Deletion(0, [(seq, seq) for seq in buried.seqs], 0), dict(buried.lagging)
    return None
