"""Routers: the commands on routers (the ROUTER rules).

A command is checked, then logged, then takes effect: where a check or the WAL refuses it, nothing has changed. Before a
router changes or goes, it copies what its source has by then. Each change is logged twice, so that no single damaged
place in the WAL can take a router.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from topics.engine.catalog import Catalog
from topics.engine.drops import Drops
from topics.engine.journal import Journal
from topics.engine.promise import OnReceipt, Receipt
from topics.engine.router import event as router_event
from topics.engine.router.copying import Joins
from topics.engine.router.event import Dropped, End, Put, Was
from topics.engine.router.forward import forward_of, into, out_of
from topics.engine.router.graph import Graph
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
from topics.engine.router.schedule import Schedule
from topics.engine.slices import Work
from topics.engine.topic import Topic
from topics.errors import RETRY_AFTER_MS, RouterNotFound, Throttled, TopicNotFound, TopicsError
from topics.names import check_router_name
from topics.storage.wal import frame as frames

CASCADE_FORWARDS: Final = 200
"""How many routers go at a time, where a topic takes many with it."""


class Routers:
    """The routers of one engine: the graph that they form, when they copy, and the commands on them."""

    def __init__(self, journal: Journal, catalog: Catalog, run_until_idle: Callable[[], None]) -> None:
        self._journal = journal
        self._catalog = catalog
        self._run_until_idle = run_until_idle
        joins = Joins()
        self.schedule = Schedule(journal, joins)
        self.graph = Graph(journal, catalog.limits.max_total_bytes, joins, self.schedule)
        self.lineage = self.graph.lineage
        self._drops = Drops()
        # Topics that are about to go, with the names of the routers that have gone before them.
        self._leaving: dict[Topic, set[str]] = {}

    def __len__(self) -> int:
        """How many routers there are."""
        return len(self.graph.by_name)

    def get(self, name: str) -> RouterState:
        """One router; raises RouterNotFound."""
        check_router_name(name)
        router = self.graph.by_name.get(name)
        if router is None:
            raise RouterNotFound(f'router "{name}" does not exist', router=name)
        forward = forward_of(router)
        if forward.has_backlog:
            forward.catch_up()
        rule = msgspec.structs.asdict(router.rule)
        total = router.forwarded_total
        ends = router.source.name, router.dest.name
        return RouterState(name, *ends, **rule, forwarded_total=total, lag=forward.lag)

    def page(
        self,
        prefix: str = "",
        source: str | None = None,
        dest: str | None = None,
        after: str = "",
        page_size: int = 100,
        allowed: tuple[str, ...] = (),
    ) -> tuple[list[RouterSummary], str | None]:
        """A page of routers after the name `after`, and the name to continue from if there are more.

        With `allowed`, only those whose name, source and dest begin with one of these.
        """
        page: list[RouterSummary] = []
        for name in self.graph.names.after(after, prefix, allowed):
            router = self.graph.by_name[name]
            ends = router.source.name, router.dest.name
            if source not in (None, ends[0]) or dest not in (None, ends[1]):
                continue
            if allowed and not all(end.startswith(allowed) for end in ends):
                continue
            if len(page) == page_size:
                return page, page[-1].router
            counted = router.forwarded_total, forward_of(router).lag
            page.append(RouterSummary(name, *ends, router.rule.guarantee, *counted, router.rule.filter))
        return page, None

    def put(self, name: str, put: PutRouter, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Create a router or change one; the result is a RouterPut.

        A change of source or dest is a delete and a create in one step: it copies from the new source's head.
        """
        check_router_name(name)
        graph, topics = self.graph, self._catalog.topics
        router = graph.by_name.get(name)
        rule = rule_of(put, Rule() if router is None else router.rule, self._catalog.limits.max_tag_bytes)
        result = RouterPut(name, router is None, put.source, put.dest, **msgspec.structs.asdict(rule))
        receipt = Receipt(result, on_done, context)
        if router is None or (router.source.name, router.dest.name) != (put.source, put.dest):
            graph.check(put, rule, topics, router)
            if router is None:
                self._check_count()
            else:
                forward_of(router).catch_up()
            self._establish(name, *self._ends(put), rule, router)
        elif rule != router.rule:
            if router.rule.allow_cycle:
                graph.check(put, rule, topics, router)
            forward = forward_of(router)
            forward.catch_up()
            changed = Router(name, router.source, router.dest, rule, router.start_seq, router.created_ts)
            forward.visibility.follow(_log_put(self._journal, changed))
            graph.change(router, rule)
        receipt.follow_all(forward_of(graph.by_name[name]).visibility.changes)
        return receipt.waited(self._run_until_idle)

    def _establish(self, name: str, source: Topic, dest: Topic, rule: Rule, old: Router | None) -> None:
        """Have a router between two topics from now on, in the place of an old one of its name."""
        if dest.inbound is not None and dest.inbound.source is source:
            dest.inbound.catch_up()
        router = Router(name, source, dest, rule, source.log.head, self._journal.clock.now_ms())
        change = _log_put(self._journal, router, old)
        if old is not None:
            forward_of(old).visibility.follow(change)
            self.graph.remove(old)
        self.graph.add(router)
        visibility = forward_of(router).visibility
        visibility.follow(change)
        visibility.reserve()

    def delete(self, name: str, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Stop copying at once; the result is a RouterDeleted."""
        check_router_name(name)
        router = self.graph.by_name.get(name)
        receipt = Receipt(RouterDeleted(name, router is not None), on_done, context)
        if router is None:
            receipt.follow(self._drops.last(name))
            return receipt.waited(self._run_until_idle)
        forward_of(router).catch_up()
        _log_drop(self._journal, router, receipt)
        self._drops.add(name, receipt)
        self.graph.remove(router)
        return receipt.waited(self._run_until_idle)

    def cascade(self, topic: Topic, *, at_once: bool = False) -> Work:
        """Remove every router that a topic which is about to go is part of, some at a time or all `at_once`.

        What is to be copied before is copied by then. When it is over there are none, and the topic has to go in the
        same piece (`forget`). Of two that do this for the same topic, each removes some.
        """
        gone = self._leaving.setdefault(topic, set())
        while routers := _some_of(topic):
            logged: list[Router] = []
            try:
                for router in routers:
                    _log_drop(self._journal, router, Receipt())
                    logged.append(router)
            except TopicsError:
                self._leaving.pop(topic, None)
                raise
            finally:
                # Where the WAL takes no more, what it has taken is gone.
                self.graph.remove_all(logged)
            gone.update(router.name for router in logged)
            if not at_once:
                yield None

    def forget(self, topic: Topic) -> list[str]:
        """A topic is gone; the names of the routers that went with it."""
        self.lineage.forget(topic)
        return sorted(self._leaving.pop(topic, ()))

    def _check_count(self) -> None:
        max_routers = self._catalog.limits.max_routers
        if 0 < max_routers <= len(self):
            raise Throttled(
                f"there are {max_routers} routers already; delete one or raise TOPICS_MAX_ROUTERS",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_routers",
                max=max_routers,
            )

    def _ends(self, put: PutRouter) -> tuple[Topic, Topic]:
        """Source and dest, made where they are missing: both or none."""
        catalog = self._catalog
        missing = [name for name in (put.source, put.dest) if name not in catalog.topics]
        if put.dest in missing and not put.create_dest:
            raise TopicNotFound(f'topic "{put.dest}" does not exist and create_dest is false', topic=put.dest)
        catalog.check_room(len(missing))
        for name in missing:
            catalog.create_default(name)
        return catalog.topics[put.source], catalog.topics[put.dest]


def _some_of(topic: Topic) -> list[Router]:
    """Some of the routers that a topic is part of; none where it has none."""
    inbound = into(topic)
    forwards = [*([] if inbound is None else [inbound]), *out_of(topic)[:CASCADE_FORWARDS]]
    return [router for forward in forwards for router in forward.routers][:CASCADE_FORWARDS]


def _log_put(journal: Journal, router: Router, old: Router | None = None) -> Receipt:
    """Log a router as it is to be, in the place of an `old` one. Raises, and has logged nothing, where the WAL is full.

    The receipt is done once the router's two topics are durable too, in whichever shards they are.
    """
    source, dest = router.source, router.dest
    inbound = dest.inbound
    run = None
    if old is None:
        # Where there was no router, no copies come right before this one.
        run = (dest.next_seq, router.start_seq) if inbound is None else inbound.end_run()
    pending = [end for end in (source, dest) if end.last_config is not None and not end.last_config.done]
    put = Put(
        **msgspec.structs.asdict(router_event.image_of(router)),
        position=router.start_seq if inbound is None or inbound.source is not source else inbound.cursor,
        dest_seq=dest.next_seq,
        was=None if old is None else _was(old),
        ends=[] if old is None else [_end(topic) for topic in pending],
        run=run,
    )
    logged, change = Receipt(), Receipt()
    journal.submit_twice(dest if old is None else old.dest, frames.ROUTER_PUT, router_event.encode(put), logged)
    change.follow_all([logged, *(end.last_config for end in pending if end.last_config is not None)])
    return change


def _log_drop(journal: Journal, router: Router, receipt: Receipt) -> None:
    """Log that a router is gone: the copies of those that stay wait for it."""
    forward, source_id = forward_of(router), router.source.id
    dropped = Dropped(router.name, forward.cursor, router.dest.next_seq, source_id, forward.end_run())
    journal.submit_twice(router.dest, frames.ROUTER_DROP, router_event.encode(dropped), receipt)
    forward.visibility.follow(receipt)


def _was(router: Router) -> Was:
    forward = forward_of(router)
    return Was(router.source.id, router.dest.id, forward.cursor, router.dest.next_seq, forward.end_run())


def _end(topic: Topic) -> End:
    return End(topic.id, topic.name, msgspec.json.encode(topic.config), topic.created_ts)
