"""Graph: which routers there are, and the topics that they connect.

1. A destination has one source (another one is refused as `router_dest_fan_in`), so its copies are one ordered
   sequence. Several routers between the same two topics are allowed, and each copies.
2. There are no directed cycles, unless the router that would close one says `allow_cycle`. Then a record is forwarded
   at most HOPS_MAX times.
3. A router refers to two topics that exist: it goes with either of them. As long as it is there, it is one of the
   routers of its destination's Forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topics.engine.journal import Journal
from topics.engine.router.backlog import Backlog, Held
from topics.engine.router.copying import Joins
from topics.engine.router.forward import Forward, forward_of, into
from topics.engine.router.lineage import Lineage
from topics.engine.router.router import PutRouter, Router, Rule
from topics.engine.router.schedule import Fanout, Schedule, fanout_of
from topics.engine.sorted_names import SortedNames
from topics.engine.topic import Topic
from topics.errors import RouterCycle, TopicExistsIncompatible


class Graph:
    """Every router of one engine by its name, and the forwards between topics."""

    def __init__(self, journal: Journal, quota_bytes: int, joins: Joins, schedule: Schedule) -> None:
        self._journal = journal
        self._quota_bytes = quota_bytes
        self._joins = joins
        self._schedule = schedule
        self.lineage = Lineage()
        self.by_name: dict[str, Router] = {}
        self.names = SortedNames()
        # Those that may close a cycle.
        self._cyclic: set[str] = set()

    @staticmethod
    def check(put: PutRouter, rule: Rule, topics: Mapping[str, Topic], router: Router | None) -> None:
        """Raise where a router, which is `router` now, may not be between the topics that a PUT names."""
        source, dest = topics.get(put.source), topics.get(put.dest)
        inbound = None if dest is None else into(dest)
        if inbound is not None and inbound.source.name != put.source and inbound.routers != [router]:
            raise TopicExistsIncompatible(
                f'"{put.dest}" is fed from "{inbound.source.name}" already; a destination has one source',
                reason="router_dest_fan_in",
                dest=put.dest,
                source=inbound.source.name,
                router=inbound.routers[0].name,
            )
        cycle = None if rule.allow_cycle else _cycle(source, dest, router)
        if cycle is not None:
            raise RouterCycle(f"the router would close the cycle {' -> '.join(cycle)}", cycle=cycle)

    def add(self, router: Router, held: Held | None = None) -> None:
        """Have a router from now on, which copies what its source gets after `start_seq`."""
        name, dest = router.name, router.dest
        forward = into(dest)
        if forward is None:
            dest.inbound = forward = self.open(router.source, dest, router.start_seq, held)
        forward.routers.append(router)
        known = self.by_name.get(name)
        if known is None:
            self.names.add(name)
        if known is None or known.lsn <= router.lsn:
            self.by_name[name] = router
        self._changed([name])

    def change(self, router: Router, rule: Rule) -> None:
        """Copy by another rule from now on."""
        router.set(rule)
        self._see_cycles([router.name])

    def remove(self, router: Router) -> None:
        """Have a router no longer."""
        self.remove_all([router])

    def remove_all(self, routers: Sequence[Router]) -> None:
        """Have these routers no longer; how many there are besides them matters once, and not for each."""
        by_name, names, closed = self.by_name, [], []
        for router in routers:
            forward = forward_of(router)
            forward.routers.remove(router)
            if not forward.routers:
                self._detach(forward)
                closed.append(forward)
            if by_name.get(router.name) is router:
                del by_name[router.name]
                names.append(router.name)
        self._leave_sources(closed)
        self.names.remove_all(names)
        self._changed(names)

    def open(self, source: Topic, dest: Topic, cursor: int, held: Held | None = None) -> Forward:
        """A forward that the source knows of; the destination takes nothing from it yet."""
        schedule = self._schedule
        backlog = Backlog(source, cursor, held)
        quota_bytes, retry_later = self._quota_bytes, schedule.retry_later
        forward = Forward(self._journal, self.lineage, self._joins, quota_bytes, retry_later, backlog, dest)
        fanout = fanout_of(source)
        if fanout is None:
            source.outbound = fanout = Fanout(source, self._journal.clock, schedule.enqueue)
        fanout.forwards.append(forward)
        return forward

    def close(self, forward: Forward) -> None:
        """Copy nothing more with this forward."""
        self._detach(forward)
        self._leave_sources([forward])

    def _detach(self, forward: Forward) -> None:
        self._schedule.forget(forward)
        if forward.dest.inbound is forward:
            forward.dest.inbound = None

    @staticmethod
    def _leave_sources(closed: Sequence[Forward]) -> None:
        for source in {forward.source for forward in closed}:
            fanout = fanout_of(source)
            if fanout is not None and fanout.leave(closed):
                source.outbound = None

    def _changed(self, names: Iterable[str]) -> None:
        self.lineage.version += 1
        self._see_cycles(names)

    def _see_cycles(self, names: Iterable[str]) -> None:
        """These routers are new, have changed or are gone."""
        for name in names:
            router = self.by_name.get(name)
            if router is not None and router.rule.allow_cycle:
                self._cyclic.add(name)
            else:
                self._cyclic.discard(name)
        self.lineage.cyclic = bool(self._cyclic)


def _cycle(source: Topic | None, dest: Topic | None, router: Router | None) -> list[str] | None:
    """The way from `source` over `dest` back to `source`; None if there is none.

    A destination has one source, so there is one way back. A forward that is there only for `router` is none: the
    router is about to leave it.
    """
    way: dict[Topic, str] = {}
    topic = source
    while topic is not None and topic not in way:
        way[topic] = topic.name
        if topic is dest:
            return [*list(way.values())[:1], *reversed(way.values())]
        inbound = into(topic)
        topic = None if inbound is None or inbound.routers == [router] else inbound.source
    return None
