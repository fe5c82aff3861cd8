"""Lineage: which topics hold records that follow from those of others, by a router or as dead letters.

`version` counts the changes of it: a checkpoint captures sources before their destinations, and begins anew where that
order has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topics.engine.router.forward import out_of

if TYPE_CHECKING:
    from topics.engine.router.router import Router
    from topics.engine.topic import Topic


class Lineage:
    """Who derives from whom. Routers stand in the topics themselves; the queues of dead letters are known here."""

    def __init__(self) -> None:
        self.version = 0
        # Topics that got dead letters, by the queue that they came from.
        self.letters: dict[Topic, set[Topic]] = {}

    def link(self, queue: Topic, dest: Topic) -> None:
        """Dead letters of a queue went to `dest`."""
        queues = self.letters.setdefault(dest, set())
        if queue not in queues:
            queues.add(queue)
            self.version += 1

    def forget(self, topic: Topic) -> None:
        """A topic is gone, and with it what it had to do with dead letters."""
        for queues in self.letters.values():
            queues.discard(topic)
        self.letters.pop(topic, None)

    def _parents(self, topic: Topic) -> list[Topic]:
        return [*([] if topic.inbound is None else [topic.inbound.source]), *self.letters.get(topic, ())]

    def upstream(self, topic: Topic) -> list[Topic]:
        """The topic and everything that its records may follow from, the nearest first."""
        found = [topic]
        for each in found:
            found += [source for source in self._parents(each) if source not in found]
        return found

    def in_order(self, topics: Iterable[Topic]) -> list[Topic]:
        """The topics, each behind those that it derives from; within a cycle, anyhow."""
        ordered: dict[Topic, None] = {}
        for topic in topics:
            stack = [topic]
            seen = set()
            while stack:
                top = stack[-1]
                seen.add(top)
                open_ = [each for each in self._parents(top) if each not in ordered and each not in seen]
                open_ = [each for each in open_ if not each.deleted]
                if open_:
                    stack.extend(open_)
                else:
                    ordered[stack.pop()] = None
        return list(ordered)


def cycle(source: str, dest: str, begin: Topic | None, router: Router | None) -> list[str] | None:
    """The way from `source` over `dest`, which is the topic `begin`, back to `source`; None if there is none.

    A way that only `router` makes does not count: it is about to go.
    """
    came_from: dict[str, str] = {dest: source}
    stack = [] if begin is None else [begin]
    while stack:
        topic = stack.pop()
        for forward in out_of(topic):
            name = forward.dest.name
            if forward.routers == [router] or name in came_from:
                continue
            came_from[name] = topic.name
            if name == source:
                way = [name]
                while way[-1] != dest:
                    way.append(came_from[way[-1]])
                return [source, *reversed(way)]
            stack.append(forward.dest)
    return None
