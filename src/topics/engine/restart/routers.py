"""Routers across a restart: what a checkpoint says about them, and back into the graph from there and from the WAL.

A checkpoint has the routers in a section after all topics, and each destination's position in the section of that
topic. Later frames then change them, each at its place among its destination's frames. While a restart lasts, every
forward holds what leaves its source (`Held`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Final

from topics.engine.router import event as router_event
from topics.engine.router.backlog import Held
from topics.engine.router.event import Dropped, ForwardImage, Put
from topics.engine.router.forward import Forward, forward_of, into, out_of
from topics.engine.router.graph import Graph
from topics.engine.router.lineage import Lineage
from topics.engine.router.router import Router
from topics.engine.router.visibility import LASTING
from topics.engine.topic import Topic
from topics.storage.job import Miss, run_inline
from topics.storage.snapshot import snapshot

log = logging.getLogger("topics.routers")

ROUTERS_SECTION: Final = snapshot.FIRST_ENGINE_KIND
PIECE_ROUTERS: Final = 200


def capture(graph: Graph, lsn: int) -> Iterator[bytes | None]:
    """The section of the routers for a checkpoint, after a None per piece of work; none where there are no routers.

    It is in vain where routers come or go meanwhile. One that changes has a frame after `lsn`.
    """
    images = []
    for router in graph.by_name.values():
        images.append(router_event.image_of(router))
        if len(images) % PIECE_ROUTERS == 0:
            yield None
    if images:
        yield snapshot.engine_section(ROUTERS_SECTION, 0, router_event.encode(images), lsn=lsn)


class RestoredRouters:
    """The routers that a restart has found so far."""

    def __init__(self, graph: Graph, by_id: dict[int, Topic]) -> None:
        self._graph = graph
        self._by_id = by_id
        self._images: dict[int, ForwardImage] = {}
        # Topics of which only the id is known: what they had copied or taken is lost with their state.
        self.strangers: set[int] = set()

    def remember(self, topic_id: int, image: bytes) -> None:
        """Keep how far a destination was served until its routers are there."""
        self._images[topic_id] = router_event.decode_forward(image)

    def restore(self, section: bytes) -> None:
        """The section of the routers, which comes after all topics."""
        for image in router_event.decode_routers(section):
            source, dest = self._by_id.get(image.source_id), self._by_id.get(image.dest_id)
            if {image.source_id, image.dest_id} & self.strangers:
                log.error("router %s is gone: the state of one of its ends is lost", image.name)
            elif source is not None and dest is not None:
                router = Router(image.name, source, dest, image.rule, image.start_seq, image.created_ts)
                self._graph.add(router, Held())
        for topic_id, forward_image in self._images.items():
            dest = self._by_id.get(topic_id)
            forward = None if dest is None else into(dest)
            if forward is not None and forward.source.id == forward_image.source_id:
                forward.restore(forward_image)
        self._images = {}

    def expect(self, put: Put, dest: Topic) -> Forward | None:
        """A forward that holds what leaves the source while a ROUTER_PUT waits for its place."""
        source = self._by_id.get(put.source_id)
        return None if source is None else self._graph.open(source, dest, put.position, Held())

    def put(self, dest: Topic, put: Put, lsn: int, expected: Forward | None) -> None:
        """ROUTER_PUT, at its place among the destination's frames.

        `expected` is the forward that was kept while this frame waited; a later frame may have brought the router, and
        its name, elsewhere by now. Where the router was elsewhere before, it stays there too until the end: the frame
        that takes it away waits for copies that it has to make before it goes, or is lost, and these were shown.
        """
        graph = self._graph
        source = self._by_id.get(put.source_id) if expected is None else expected.source
        stale = into(dest)
        if put.was is not None and stale is not None and stale.source is not source:
            # The frame that took them away is lost. It was in another shard than this one, which may be acked.
            graph.remove_all(list(stale.routers))
        if expected is not None and dest.inbound is None:
            dest.inbound = expected
        inbound = into(dest)
        if source is not None and (inbound is None or inbound.source is source):
            routers = [] if inbound is None else inbound.routers
            router = next((each for each in routers if each.name == put.name), None)
            if router is None:
                is_first = not routers
                router = Router(put.name, source, dest, put.rule, put.start_seq, put.created_ts, lsn)
                graph.add(router, Held())
                if is_first:
                    forward_of(router).backlog.cursor = put.position
            else:
                router.lsn = lsn
                graph.change(router, put.rule)
        if expected is not None and not expected.routers:
            graph.close(expected)

    def drop(self, dest: Topic, dropped: Dropped) -> None:
        """ROUTER_DROP, at its place among the destination's frames."""
        forward = into(dest)
        if forward is not None and dropped.source_id in (0, forward.source.id):
            for router in [router for router in forward.routers if router.name == dropped.name]:
                self._graph.remove(router)

    def finish(self, topics: Collection[Topic]) -> None:
        """Go over to serving: routers without both ends are gone, and so are those that went without a frame."""
        graph = self._graph
        forwards = [forward for topic in topics for forward in (into(topic), *out_of(topic)) if forward is not None]
        restored = [*graph.by_name.values(), *(router for forward in forwards for router in forward.routers)]
        for router in dict.fromkeys(restored):
            if router.source.deleted or router.dest.deleted or graph.by_name.get(router.name) is not router:
                graph.remove(router)
        for topic in topics:
            forward = into(topic)
            if forward is not None:
                backlog = forward.backlog
                backlog.held = None
                if topic.config.durability == "ephemeral":
                    # It keeps nothing over a restart, so nothing of what is there is copied.
                    backlog.cursor = backlog.source.log.head
                backlog.rewind()
                if backlog.source.outbound is not None:
                    backlog.source.outbound.published(backlog.source)


def reached(topics: Collection[Topic]) -> list[tuple[int, int, int]]:
    """How far each destination is that takes copies only while it has room: (topic id, next seq, source seq)."""
    dests = [topic for topic in topics if topic.config.discard == "reject"]
    return [(topic.id, topic.next_seq, topic.inbound.cursor) for topic in dests if topic.inbound is not None]


def resume(lineage: Lineage, topics: Collection[Topic]) -> None:
    """Before the first client is served: each destination loses what its source has lost, sources first."""
    for topic in list(lineage.in_order(topics)):
        forward = into(topic)
        while forward is not None:
            try:
                _resume(forward)
                break
            except Miss as miss:
                run_inline([miss.job])


def _resume(forward: Forward) -> None:
    """Lose what the source cannot give again, as far as a reader may have seen it. May raise Miss."""
    dest = forward.dest
    lost = dest.ceiling.seq - dest.log.head
    if lost > 0 and dest.config.durability in LASTING and forward.visibility.forgets:
        forward.lose(lost, forward.cursor)
    if forward.source.log.lost or forward.backlog.lost_to():
        # What comes after a loss could not be made again before it.
        forward.catch_up()
