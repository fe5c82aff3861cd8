"""Routers: all routers of one engine, the graph that they form, and the commands on them (API §6, DESIGN §8).

Rules of the graph:

1. A destination has one source (fan-in is 409 `router_dest_fan_in`), so that its copies are one ordered sequence.
   Several routers between the same two topics are allowed, and each copies.
2. There are no directed cycles, unless the router that would close one says `allow_cycle`; then a record is forwarded
   at most HOPS_MAX times.
3. A router refers to two topics that exist: it goes with either of them.

`step` forwards off the path of any ack, in slices. Who derives from whom is the lineage's business.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.engine.router import event as router_event
from topics.engine.router.event import Dropped, End, ForwardImage, Put, RouterImage, Was
from topics.engine.router.fanout import Fanout, fanout_of
from topics.engine.router.forward import Forward, into, out_of
from topics.engine.router.lineage import Lineage, cycle
from topics.engine.router.router import (
    PutRouter,
    Router,
    RouterDeleted,
    RouterPut,
    RouterState,
    RouterSummary,
    Rule,
    rule_of,
)
from topics.engine.sorted_names import SortedNames
from topics.engine.write.ticket import OnReceipt, Receipt
from topics.errors import (
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)
from topics.names import check_router_name
from topics.storage.job import Miss, run_inline
from topics.storage.snapshot import snapshot
from topics.storage.wal import frame as frames

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic import Topic

log = logging.getLogger("topics.routers")

ROUTERS_SECTION: Final = snapshot.FIRST_ENGINE_KIND
STEP_NS: Final = 1_000_000
RETRY_AFTER_MS: Final = 1000


class Routers:
    """Every router, and what waits to be forwarded."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.by_name: dict[str, Router] = {}
        self.names = SortedNames()
        self.cyclic = False
        self.recovering = False
        self.lineage = Lineage()
        self._dirty: deque[Fanout] = deque()
        self._blocked: dict[Forward, None] = {}
        self._images: dict[int, ForwardImage] = {}
        # Routers that are gone and whose frame is on its way.
        self._dropping: dict[str, Receipt] = {}
        # Topics of which a restart knows only the id: what they had forwarded or taken is lost with their state.
        self.strangers: set[int] = set()

    def __len__(self) -> int:
        """How many routers there are."""
        return len(self.by_name)

    # Commands

    def get(self, name: str) -> RouterState:
        """One router; raises RouterNotFound."""
        check_router_name(name)
        router = self.by_name.get(name)
        if router is None:
            raise RouterNotFound(f'router "{name}" does not exist', router=name)
        if router.forward.behind:
            router.forward.catch_up()
        return router.state

    def page(
        self,
        prefix: str = "",
        source: str | None = None,
        dest: str | None = None,
        after: str = "",
        page_size: int = 100,
        allowed: tuple[str, ...] = (),
    ) -> tuple[list[RouterSummary], str | None]:
        """A page of routers behind the name `after`, and the name to go on from if there are more."""
        page: list[RouterSummary] = []
        for name in self.names.after(after, prefix, allowed):
            forward = self.by_name[name].forward
            if source not in (None, forward.source.name) or dest not in (None, forward.dest.name):
                continue
            if len(page) == page_size:
                return page, page[-1].router
            page.append(self.by_name[name].summary)
        return page, None

    def put(self, name: str, put: PutRouter, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Create a router or change one; the result is a RouterPut.

        A change of source or dest is a delete and a create in one step: it forwards from the new source's head.
        """
        check_router_name(name)
        router = self.by_name.get(name)
        created = router is None
        rule = rule_of(put, Rule() if router is None else router.rule)
        receipt = Receipt(None, on_done, context)
        receipt.result = RouterPut(name, created, put.source, put.dest, **msgspec.structs.asdict(rule))
        if router is None or (router.forward.source.name, router.forward.dest.name) != (put.source, put.dest):
            self._check_graph(put, rule, router)
            if router is None:
                self._check_count()
            else:
                router.forward.catch_up()
            self._establish(name, *self._endpoints(put), rule, router)
        elif rule != router.rule:
            self._check_graph(put, rule, router)
            forward = router.forward
            forward.catch_up()
            forward.change = self._log_put(
                name, forward.source, forward.dest, rule, router.start_seq, router.created_ts
            )
            router.set(rule)
            self._see_cycles()
        receipt.follow(self.by_name[name].forward.change)
        return receipt.waited(self._engine.run_until_idle)

    def _establish(self, name: str, source: Topic, dest: Topic, rule: Rule, old: Router | None) -> None:
        """Have a router between two topics from now on, in the place of an old one of its name."""
        if dest.inbound is not None and dest.inbound.source is source:
            dest.inbound.catch_up()
        start_seq, created_ts = source.log.head, self._engine.clock.now_ms()
        change = self._log_put(name, source, dest, rule, start_seq, created_ts, old)
        if old is not None:
            self._remove(old)
        forward = self._add(name, source, dest, rule, start_seq, created_ts).forward
        forward.change = change
        forward.reserve()

    def delete(self, name: str, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Stop forwarding at once; the result is a RouterDeleted."""
        check_router_name(name)
        router = self.by_name.get(name)
        receipt = Receipt(RouterDeleted(name, router is not None), on_done, context)
        if router is None:
            receipt.follow(self._dropping.get(name))
            return receipt.waited(self._engine.run_until_idle)
        router.forward.catch_up()
        self._log_drop(router, receipt)
        self._dropping[name] = receipt
        Receipt(None, self._dropped, (name, receipt)).follow(receipt)
        self._remove(router)
        return receipt.waited(self._engine.run_until_idle)

    def _dropped(self, receipt: Receipt) -> None:
        name, dropping = receipt.context
        if self._dropping.get(name) is dropping:
            del self._dropping[name]

    def cascade(self, topic: Topic) -> list[str]:
        """Remove every router that a topic which is about to go is part of; their names."""
        inbound = into(topic)
        forwards = [] if inbound is None else [inbound]
        if topic.outbound is not None:
            topic.outbound.catch_up()
            forwards += out_of(topic)
        routers = sorted((router for forward in forwards for router in forward.routers), key=lambda each: each.name)
        for router in routers:
            self._log_drop(router, None)
            self._remove(router)
        self.lineage.forget(topic)
        return [router.name for router in routers]

    def _check_graph(self, put: PutRouter, rule: Rule, router: Router | None) -> None:
        dest = self._engine.topics.get(put.dest)
        inbound = None if dest is None else into(dest)
        if inbound is not None and inbound.source.name != put.source and inbound.routers != [router]:
            raise TopicExistsIncompatible(
                f'"{put.dest}" is fed from "{inbound.source.name}" already; a destination has one source',
                reason="router_dest_fan_in",
                dest=put.dest,
                source=inbound.source.name,
                router=inbound.routers[0].name,
            )
        found = None if rule.allow_cycle else cycle(put.source, put.dest, dest, router)
        if found is not None:
            raise RouterCycle(f"the router would close the cycle {' -> '.join(found)}", cycle=found)

    def _check_count(self) -> None:
        max_routers = self._engine.limits.max_routers
        if 0 < max_routers <= len(self.by_name):
            raise Throttled(
                f"there are {max_routers} routers already; delete one or raise TOPICS_MAX_ROUTERS",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_routers",
                max=max_routers,
            )

    def _endpoints(self, put: PutRouter) -> tuple[Topic, Topic]:
        """Source and dest, made where they are missing: both or none."""
        engine = self._engine
        missing = [name for name in (put.source, put.dest) if name not in engine.topics]
        if put.dest in missing and not put.create_dest:
            raise TopicNotFound(f'topic "{put.dest}" does not exist and create_dest is false', topic=put.dest)
        engine.catalog.check_room(len(missing))
        for name in missing:
            engine.catalog.create_default(name)
        return engine.topics[put.source], engine.topics[put.dest]

    def _add(
        self, name: str, source: Topic, dest: Topic, rule: Rule, start_seq: int, created_ts: int, lsn: int = 0
    ) -> Router:
        forward = into(dest)
        if forward is None:
            forward = dest.inbound = self.forward(source, dest, start_seq)
        router = Router(name, forward, rule, start_seq, created_ts)
        router.lsn = lsn
        forward.routers.append(router)
        known = self.by_name.get(name)
        if known is None:
            self.names.add(name)
        if known is None or known.lsn <= lsn:
            self.by_name[name] = router
        self.lineage.version += 1
        self._see_cycles()
        return router

    def forward(self, source: Topic, dest: Topic, cursor: int) -> Forward:
        """A way between two topics, which the source knows of; the destination takes nothing from it yet."""
        forward = Forward(self._engine, source, dest, cursor)
        fanout = fanout_of(source)
        if fanout is None:
            fanout = source.outbound = Fanout(self, source)
        fanout.forwards.append(forward)
        return forward

    def close(self, forward: Forward) -> None:
        """Forward nothing more on this way."""
        self._blocked.pop(forward, None)
        if forward.dest.inbound is forward:
            forward.dest.inbound = None
        fanout = fanout_of(forward.source)
        if fanout is not None and forward in fanout.forwards:
            fanout.forwards.remove(forward)
            if not fanout.forwards:
                fanout.close()
                forward.source.outbound = None

    def _remove(self, router: Router) -> None:
        router.forward.routers.remove(router)
        if not router.forward.routers:
            self.close(router.forward)
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
            self.names.remove(router.name)
        self.lineage.version += 1
        self._see_cycles()

    def _see_cycles(self) -> None:
        self.cyclic = any(router.rule.allow_cycle for router in self.by_name.values())

    # Forwarding

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do at once."""
        return bool(self._dirty)

    def enqueue(self, fanout: Fanout) -> None:
        """A source has something to forward. Belongs to the Fanout."""
        self._dirty.append(fanout)
        self._engine.journal.wake()

    def retry_later(self, forward: Forward) -> None:
        """A destination refused. Belongs to the Forward."""
        self._blocked[forward] = None
        self._engine.journal.wake()

    def next_due_ms(self) -> int | None:
        """When a destination that refused is to be tried again, or None."""
        return min((forward.retry_ms for forward in self._blocked if forward.retry_ms is not None), default=None)

    def step(self, budget_ns: int = STEP_NS) -> None:
        """Forward for about so long; `busy` tells whether there is more."""
        if self._blocked:
            self._retry()
        if not self._dirty:
            return
        clock = self._engine.clock
        deadline_ns = clock.elapsed_ns() + budget_ns
        while self._dirty:
            fanout = self._dirty[0]
            try:
                if fanout.step():
                    self._dirty.rotate(-1)
                else:
                    self._dirty.popleft()
            except Miss as miss:
                self._dirty.popleft()
                fanout.dirty = False
                fanout.source.read_then(miss, partial(fanout.published, fanout.source))
            if clock.elapsed_ns() >= deadline_ns:
                return

    def _retry(self) -> None:
        now = self._engine.clock.now_ms()
        for forward in list(self._blocked):
            if forward.retry_ms is None or not forward.behind:
                del self._blocked[forward]
            elif forward.retry_ms > now:
                continue
            else:
                forward.retry_ms = None
            if forward.behind and forward.source.outbound is not None:
                forward.source.outbound.published(forward.source)

    # The log

    def _log_put(
        self,
        name: str,
        source: Topic,
        dest: Topic,
        rule: Rule,
        start_seq: int,
        created_ts: int,
        old: Router | None = None,
    ) -> Receipt:
        """Log a router as it is to be; raises, and has changed nothing, where the WAL takes no more.

        It is done once its two topics are durable too, in whichever shards they are.
        """
        inbound = dest.inbound
        joined = inbound is not None and inbound.source is source
        left = dest if old is None else old.forward.dest
        ends = [end for end in (source, dest) if end.last_config is not None and not end.last_config.done]
        put = Put(
            name,
            source.id,
            dest.id,
            rule.preserve_node,
            rule.preserve_tag,
            msgspec.json.encode(rule.filter),
            rule.allow_cycle,
            rule.guarantee,
            start_seq,
            created_ts,
            inbound.cursor if inbound is not None and joined else start_seq,
            dest.next_seq,
            None if old is None else Was(old.forward.source.id, left.id, old.forward.cursor, left.next_seq),
            [End(end.id, end.name, msgspec.json.encode(end.config), end.created_ts) for end in ends if old is not None],
        )
        logged = Receipt(None, None, None)
        self._log(left, frames.ROUTER_PUT, router_event.encode(put), logged)
        change = Receipt(None, None, None)
        change.follow_all([logged, *(end.last_config for end in ends if end.last_config is not None)])
        return change

    def _log_drop(self, router: Router, receipt: Receipt | None) -> None:
        forward = router.forward
        dropped = Dropped(router.name, forward.cursor, forward.dest.next_seq)
        self._log(forward.dest, frames.ROUTER_DROP, router_event.encode(dropped), receipt)

    def _log(self, dest: Topic, kind: int, payload: bytes, receipt: Receipt | None) -> None:
        """Log a change of what exists, twice: no single damaged place in the WAL may take a router."""
        self._engine.journal.submit_twice(dest, kind, payload, receipt)

    # Checkpoints

    @property
    def derived(self) -> bool:
        """Whether any topic holds records that follow from those of another."""
        return bool(self.by_name or self.lineage.letters)

    def capture(self, lsn: int) -> list[bytes]:
        """The section of the routers for a checkpoint; none where there are no routers."""
        images = [
            RouterImage(
                router.name,
                router.forward.source.id,
                router.forward.dest.id,
                router.rule.preserve_node,
                router.rule.preserve_tag,
                msgspec.json.encode(router.rule.filter),
                router.rule.allow_cycle,
                router.rule.guarantee,
                router.start_seq,
                router.created_ts,
            )
            for router in self.by_name.values()
        ]
        return [snapshot.engine_section(ROUTERS_SECTION, 0, router_event.encode(images), lsn=lsn)] if images else []

    # Restart

    def reached(self) -> list[tuple[int, int, int]]:
        """How far each destination is that takes copies only while it has room: (topic id, next seq, source seq)."""
        dests = [topic for topic in self._engine.topics.values() if topic.config.discard == "reject"]
        return [(topic.id, topic.next_seq, topic.inbound.cursor) for topic in dests if topic.inbound is not None]

    def resume(self) -> None:
        """Before anybody is served: let every destination lose what its source has lost, sources first."""
        for topic in self.lineage.in_order(list(self._engine.topics.values())):
            while (forward := into(topic)) is not None:
                try:
                    forward.resume()
                    break
                except Miss as miss:
                    run_inline([miss.job])

    def remember(self, topic_id: int, image: bytes) -> None:
        """Keep how far a destination was served until its routers are there."""
        self._images[topic_id] = router_event.decode_forward(image)

    def restore(self, payload: bytes) -> None:
        """The section of the routers, which comes behind all topics."""
        by_id = {topic.id: topic for topic in self._engine.topics.values()}
        for image in router_event.decode_routers(payload):
            source, dest = by_id.get(image.source_id), by_id.get(image.dest_id)
            if {image.source_id, image.dest_id} & self.strangers:
                log.error("router %s is gone: the state of one of its ends is lost", image.name)
            elif source is not None and dest is not None:
                self._add(image.name, source, dest, _rule(image), image.start_seq, image.created_ts)
        for topic_id, forward_image in self._images.items():
            dest = by_id.get(topic_id)
            forward = None if dest is None else into(dest)
            if forward is not None and forward.source.id == forward_image.source_id:
                forward.restore(forward_image)
        self._images = {}

    def restore_put(
        self, dest: Topic, put: Put, lsn: int, waits: Callable[[Topic], bool], expected: Forward | None
    ) -> None:
        """ROUTER_PUT, at its place among the destination's frames.

        `waits` says whose frames wait for their place. `expected` is the way that was kept open while this one waited;
        a later frame may have brought the router elsewhere by now, and its name with it.
        """
        source = next((topic for topic in self._engine.topics.values() if topic.id == put.source_id), None)
        if expected is not None:
            source = expected.source
        known = self.by_name.get(put.name)
        if known is not None and known.lsn < lsn and (known.forward.source, known.forward.dest) != (source, dest):
            # The frame that takes it away is lost, or waits for copies that the router has to make before it goes.
            lingers = waits(known.forward.dest)
            if not lingers:
                self._remove(known)
        if expected is not None and dest.inbound is None:
            dest.inbound = expected
        inbound = into(dest)
        if source is not None and (inbound is None or inbound.source is source):
            router = next((each for each in inbound.routers if each.name == put.name), None) if inbound else None
            if router is None:
                fresh = inbound is None or not inbound.routers
                router = self._add(put.name, source, dest, _rule(put), put.start_seq, put.created_ts, lsn)
                if fresh:
                    router.forward.cursor = put.position
            else:
                router.lsn = lsn
                router.set(_rule(put))
                self._see_cycles()
        if expected is not None and not expected.routers:
            self.close(expected)

    def restore_drop(self, dest: Topic, dropped: Dropped) -> None:
        """ROUTER_DROP, at its place among the destination's frames."""
        forward = into(dest)
        if forward is not None and dropped.source_id in (0, forward.source.id):
            for router in [router for router in forward.routers if router.name == dropped.name]:
                self._remove(router)

    def drop_strays(self) -> None:
        """At the end of a restart: routers without both ends are gone, and so are those that went without a frame."""
        inbound = [forward for topic in self._engine.topics.values() if (forward := into(topic)) is not None]
        for router in [*self.by_name.values(), *(router for forward in inbound for router in forward.routers)]:
            forward = router.forward
            if router in forward.routers and (
                forward.source.deleted or forward.dest.deleted or self.by_name.get(router.name) is not router
            ):
                self._remove(router)


def _rule(of: Put | RouterImage) -> Rule:
    return Rule(
        of.preserve_node,
        of.preserve_tag,
        msgspec.json.decode(of.filter),
        of.allow_cycle,
        "exactly_once" if of.guarantee == "exactly_once" else "at_least_once",
    )
