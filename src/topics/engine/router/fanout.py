"""Fanout: all destinations of one source (DESIGN §8.1).

A publish marks its source once, whatever the number of destinations: the write that caused it pays nothing for them.
The forwards are then served in rounds, a slice each, off the path of any ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from topics.engine.router.forward import Forward

if TYPE_CHECKING:
    from topics.engine.router.routers import Routers
    from topics.engine.topic import Topic


class Fanout:
    """The forwards out of one source, and whether they have work."""

    __slots__ = ("_again", "_at", "_routers", "dirty", "done_seq", "forwards", "source")

    def __init__(self, routers: Routers, source: Topic) -> None:
        self._routers = routers
        self.source = source
        self.forwards: list[Forward] = []
        self.dirty = False
        # Up to here every forward that is not blocked has looked at the source.
        self.done_seq = 0
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
            self._routers.enqueue(self)

    def step(self) -> bool:
        """Serve the next forward one slice; whether the round goes on. May raise Miss."""
        if self._at < len(self.forwards):
            forward = self.forwards[self._at]
            self._at += 1
            forward.step()
            if forward.behind and not forward.blocked:
                self._again = True
            return True
        if self._again:
            self._at = 0
            self._again = False
            return True
        self.dirty = False
        self.done_seq = self.source.log.head
        return False

    def catch_up(self) -> None:
        """Forward everything to everybody, blocked destinations aside: something is about to leave the source."""
        for forward in self.forwards:
            if forward.behind:
                forward.catch_up()

    def before_eviction(self) -> None:
        """A cap is about to take the oldest records: forward them first if they are not forwarded yet."""
        log, config = self.source.log, self.source.config
        if self._routers.recovering:
            for forward in self.forwards:
                forward.hold(log.head)
            return
        waiting = log.head - self.done_seq
        if (config.cap_records and waiting > config.cap_records) or (
            config.cap_bytes and log.count and waiting * (log.bytes // log.count + 1) > config.cap_bytes // 2
        ):
            self.catch_up()

    def lagging(self) -> list[tuple[int, int]]:
        """(destination id, cursor) of each forward that has not seen everything."""
        return [(forward.dest.id, forward.cursor) for forward in self.forwards if forward.behind]

    def mark(self) -> None:
        """Log where the copies in each destination are."""
        for forward in self.forwards:
            forward.mark()

    def close(self) -> None:
        """Nobody is left to forward to."""
        if self.published in self.source.listeners:
            self.source.listeners.remove(self.published)


def fanout_of(topic: Topic) -> Fanout | None:
    """The fanout of a source, or None where nothing is forwarded from it."""
    return cast("Fanout | None", topic.outbound)
