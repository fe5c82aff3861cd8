"""Lineage: which topics have records that follow from those of others, by a router or as dead letters.

`version` counts its changes: a checkpoint captures sources before their destinations, and begins again where that order
has changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topics.engine.topic import Topic


class Lineage:
    """What each topic follows from. A topic knows its router itself; the queues of dead letters are known here."""

    def __init__(self) -> None:
        self.version = 0
        # Whether a record may come back to a topic that it has been in.
        self.cyclic = False
        # Topics that got dead letters, with the queues that these came from.
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
        found, seen = [topic], {topic}
        for each in found:
            parents = [source for source in self._parents(each) if source not in seen]
            seen.update(parents)
            found += parents
        return found

    def in_order(self, topics: Iterable[Topic]) -> Iterator[Topic]:
        """The topics one by one, each after those that it follows from; within a cycle, in any order.

        What it gives is right as long as `version` stays the same.
        """
        ordered: set[Topic] = set()
        for topic in topics:
            if topic.inbound is None and topic not in self.letters and topic not in ordered:
                # Most follow from nothing.
                ordered.add(topic)
                yield topic
                continue
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
                    stack.pop()
                    if top not in ordered:
                        ordered.add(top)
                        yield top
