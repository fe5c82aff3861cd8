"""Changes: how the WAL learns that a router was made, changed, moved or deleted.

Each change is logged twice, so that no single damaged place in the WAL can take a router.
"""

from __future__ import annotations

import msgspec

from topics.engine.journal import Journal
from topics.engine.router import event as router_event
from topics.engine.router.event import Dropped, End, Put, Was
from topics.engine.router.forward import into
from topics.engine.router.router import Router
from topics.engine.topic import Topic
from topics.engine.write.ticket import Receipt
from topics.storage.wal import frame as frames


def log_put(journal: Journal, router: Router, old: Router | None = None) -> Receipt:
    """Log a router as it is to be, in the place of an `old` one. Raises, and has logged nothing, where the WAL is full.

    The receipt is done once the router's two topics are durable too, in whichever shards they are.
    """
    source, dest = router.source, router.dest
    inbound = dest.inbound
    pending = [end for end in (source, dest) if end.last_config is not None and not end.last_config.done]
    put = Put(
        **msgspec.structs.asdict(router_event.image_of(router)),
        position=router.start_seq if inbound is None or inbound.source is not source else inbound.cursor,
        dest_seq=dest.next_seq,
        was=None if old is None else Was(old.source.id, old.dest.id, _cursor(old), old.dest.next_seq),
        ends=[] if old is None else [_end(topic) for topic in pending],
    )
    logged, change = Receipt(), Receipt()
    journal.submit_twice(dest if old is None else old.dest, frames.ROUTER_PUT, router_event.encode(put), logged)
    change.follow_all([logged, *(end.last_config for end in pending if end.last_config is not None)])
    return change


def log_drop(journal: Journal, router: Router, receipt: Receipt | None) -> None:
    """Log that a router is gone."""
    dropped = Dropped(router.name, _cursor(router), router.dest.next_seq)
    journal.submit_twice(router.dest, frames.ROUTER_DROP, router_event.encode(dropped), receipt)


def _cursor(router: Router) -> int:
    inbound = into(router.dest)
    assert inbound is not None
    return inbound.cursor


def _end(topic: Topic) -> End:
    return End(topic.id, topic.name, msgspec.json.encode(topic.config), topic.created_ts)
