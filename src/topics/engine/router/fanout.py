"""Fanout: all destinations of one source (ROUTER-14).

A publish marks its source once, whatever the number of destinations: the write that caused it pays nothing for them.
The forwards then take turns, a slice each, off the path of any ack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from topics.engine.router.forward import Forward
from topics.engine.topic import Topic


class Fanout:
    """The forwards out of one source, and whether they have work. `enqueue` asks for steps until one returns False."""

    __slots__ = ("_again", "_at", "_done_seq", "_enqueue", "dirty", "forwards", "source")

    def __init__(self, source: Topic, enqueue: Callable[[Fanout], None]) -> None:
        self._enqueue = enqueue
        self.source = source
        self.forwards: list[Forward] = []
        self.dirty = False
        # Up to here every forward that is not blocked has looked at the source.
        self._done_seq = 0
        self._at = 0
        self._again = False
        source.listeners.append(self.published)

    def published(self, topic: Topic) -> None:
        """The source has something new."""
        if self.dirty:
            self._again = True
        elif not topic.deleted:
            self.dirty = True
            self._at = 0
            self._again = False
            self._enqueue(self)

    def step(self) -> bool:
        """Copy the next forward's slice; whether there is more to do. May raise Miss."""
        forwards = self.forwards
        if self._at < len(forwards):
            forward = forwards[self._at]
            self._at += 1
            forward.step()
            if forward.has_backlog and forward.pressure.retry_ms is None:
                self._again = True
        if self._at < len(forwards):
            return True
        self.dirty = self._again
        if self._again:
            self._at = 0
            self._again = False
        else:
            self._done_seq = self.source.log.head
        return self.dirty

    def catch_up(self) -> None:
        """Copy everything to every destination that is not blocked: something is about to leave the source."""
        for forward in self.forwards:
            if forward.has_backlog:
                forward.catch_up()

    def before_eviction(self) -> None:
        """A cap is about to take the oldest records: copy them first where they are not copied yet."""
        log, config = self.source.log, self.source.config
        if self.forwards[0].backlog.held is not None:
            for forward in self.forwards:
                forward.backlog.hold(log.head)
            return
        waiting = log.head - self._done_seq
        if (config.cap_records and waiting > config.cap_records) or (
            config.cap_bytes and log.count and waiting * (log.bytes // log.count + 1) > config.cap_bytes // 2
        ):
            self.catch_up()

    def lagging(self) -> list[tuple[int, int]]:
        """(destination id, cursor) of each forward that has not looked at everything."""
        return [(forward.dest.id, forward.cursor) for forward in self.forwards if forward.has_backlog]

    def mark(self) -> None:
        """Log how far the copies in each destination are."""
        for forward in self.forwards:
            forward.mark()

    def close(self) -> None:
        """No destination is left."""
        if self.published in self.source.listeners:
            self.source.listeners.remove(self.published)


def fanout_of(topic: Topic) -> Fanout | None:
    """The fanout of a source, which the topic itself knows by a protocol only."""
    return cast("Fanout | None", topic.outbound)
