"""Channel: one topic and the feeds that follow it.

A channel exists while a feed follows its topic. A publish makes it dirty, and the delivery loop calls `deliver`, which
serves the feeds in rounds: each feed once per round, one batch at most, so that a feed with a long backlog does not
hold up those at the head. A round may take many slices; a slice serves at most a given number of feeds and then gives
the loop back. What follows a cursor is read and rendered once per round for all feeds at that cursor with the same
view, and again where the log has changed meanwhile, because a delete must show to every reader at once. So the streams
that do not read share what they have not taken.

`consistency: strong` (WATCH-13): a feed with a strong view sees only what is synced. For `disk` and `memory` topics
the channel notes, per publish, how far the log was written at that moment, and moves its synced seq when a sync has
passed that mark (`Unsynced`); `fsync` publishes only what is synced, and `ephemeral` has nothing to wait for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from topics.engine.log import loss
from topics.engine.log.difference import SEQ_BASE, Difference, Tombstone, gap_at, labelled, read
from topics.engine.topic import Topic
from topics.errors import Internal, TopicsError
from topics.server.delivery import notice as notices
from topics.server.delivery.notice import Notice, Parcel
from topics.server.delivery.subscriber import Feed
from topics.server.delivery.view import View
from topics.storage.job import Miss

if TYPE_CHECKING:
    from topics.server.delivery.delivery import Delivery

log = logging.getLogger("topics.delivery")

PARCELS_BYTES_MAX: Final = 4 << 20
"""How much of what was read in a round is kept for the feeds that come later in it."""
FROM_SEQ_TOO_OLD: Final = "from_seq_too_old"
Unfiltered = tuple[Difference, list[tuple[bytes | None, bytes]]]
"""What follows a cursor before anything is filtered by node: each record with its node."""
_FLOOR_REASONS: Final = frozenset((loss.CAP, loss.TTL, loss.MIXED))


class Unsynced:
    """The channels that wait for a sync of the WAL, each by its `look_at_sync`. The store calls `synced` after each."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: dict[Callable[[], bool], None] = {}

    def add(self, look: Callable[[], bool]) -> None:
        """Call `look` after every sync, until it returns that nothing waits any more."""
        self._looks[look] = None

    def discard(self, look: Callable[[], bool]) -> None:
        """The channel waits no longer."""
        self._looks.pop(look, None)

    def synced(self) -> None:
        """A sync has come further: let the channels show what it covers."""
        for look in [each for each in self._looks if not each()]:
            self.discard(look)


class Channel:
    """The feeds of one topic."""

    __slots__ = (
        "_at", "_backlog", "_delivery", "_fresh", "_fresh_since_ns", "_missing", "_parcels", "_parcels_bytes",
        "_parcels_state", "_todo", "_unfiltered", "_unsynced", "feeds", "name", "round_ms", "round_since_ns",
        "synced_seq", "topic",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, topic: Topic) -> None:
        self.topic = topic
        self.name = topic.name.encode()
        self.feeds: dict[Feed, None] = {}
        self.round_ms = 0
        self.round_since_ns = 0
        """When the first record was published that the round is for; 0 where it is for what came before."""
        self.synced_seq = -1
        self._delivery = delivery
        self._fresh = False
        self._fresh_since_ns = 0
        self._backlog: dict[Feed, None] = {}
        self._missing: dict[Feed, None] = {}
        self._unfiltered: dict[tuple[int, tuple[object, ...], int | None], Unfiltered] = {}
        self._parcels: dict[tuple[int, View], Parcel | None] = {}
        self._parcels_state: tuple[int, ...] = ()
        self._parcels_bytes = 0
        self._todo: list[Feed] = []
        self._at = 0
        self._unsynced: deque[tuple[int, int]] | None = None
        topic.listeners[self._published] = None

    # Feeds that come and go

    def attach(self, feed: Feed, epoch: int | None) -> None:
        """Let a feed follow from its cursor on, which belongs to `epoch` where that is known (WATCH-18)."""
        self.feeds[feed] = None
        feed.channel = self
        if feed.view.strong and self._unsynced is None:
            self._unsynced = deque()
            self._note_unsynced()
        topic = self.topic
        now_ms = self._delivery.now_ms
        topic.touch(now_ms)
        if epoch is not None and epoch != topic.id:
            log = topic.log
            topic.expire_if_at_hand(now_ms)
            lost = Tombstone(SEQ_BASE, log.head, loss.RECREATED, log.start, log.head)
            feed.subscriber.send(feed, notices.tombstone(self.name, lost))
        else:
            self.welcome(feed)
        self.resume(feed)

    def detach(self, feed: Feed) -> None:
        """Forget a feed."""
        feed.channel = None
        self.feeds.pop(feed, None)
        self._backlog.pop(feed, None)
        self._missing.pop(feed, None)
        if not self.feeds:
            self.topic.listeners.pop(self._published, None)
            self._delivery.forget(self)

    def welcome(self, feed: Feed) -> None:
        """Send a feed that comes, or comes back after a long time, the tombstone of what a cap or TTL took before."""
        self.topic.expire_if_at_hand(self._delivery.now_ms)
        lost, _ = gap_at(self.topic.log, feed.cursor)
        if lost is not None and not self.topic.deleted:
            if lost.reason in _FLOOR_REASONS:
                lost = msgspec.structs.replace(lost, reason=FROM_SEQ_TOO_OLD)
            feed.subscriber.send(feed, notices.tombstone(self.name, lost))

    def resume(self, feed: Feed) -> None:
        """Serve a feed in the next round, whether its topic publishes or not."""
        if feed.lagging or feed.cursor < self.topic.log.head or self.topic.deleted:
            self._backlog[feed] = None
            self._delivery.dirty(self)

    # Rounds

    def _published(self, topic: Topic) -> None:
        if not self._fresh:
            self._fresh = True
            self._fresh_since_ns = self._delivery.engine.clock.elapsed_ns()
        if self._unsynced is not None:
            self._note_unsynced()
        self._delivery.dirty(self)

    @property
    def mid_round(self) -> bool:
        """Whether a round is under way."""
        return self._at < len(self._todo)

    @property
    def hungry(self) -> bool:
        """Whether there is reason for another round."""
        return self._fresh or bool(self._backlog)

    def deliver(self, feeds_max: int, bytes_max: int, deadline_ns: int) -> tuple[int, int]:
        """Serve at most `feeds_max` feeds and about `bytes_max`, and stop soon after the deadline; how much it was."""
        if self._at == len(self._todo):
            self._begin_round()
        topic, todo, begin = self.topic, self._todo, self._at
        if topic.deleted:
            return self._end_feeds(feeds_max), 0
        now_ms, clock = self._delivery.now_ms, self._delivery.engine.clock
        if topic.config.ttl_ms:
            topic.expire_if_at_hand(now_ms)
        topic.touch(now_ms)
        parcels = self._parcels_now()
        caught_up: dict[int, Notice] = {}
        written = frames = 0
        at, end = begin, min(len(todo), begin + feeds_max)
        try:
            while at < end:
                feed = todo[at]
                at += 1
                if feed.channel is not self:
                    continue
                subscriber = feed.subscriber
                if subscriber.link.write_paused:
                    subscriber.stall()
                    continue
                key = (feed.cursor, feed.view)
                parcel = parcels.get(key)
                if parcel is None:
                    parcel = self._fetch(feed, first=key not in parcels)
                    parcels = self._room_for(parcel)
                    parcels[key] = parcel
                    if clock.elapsed_ns() > deadline_ns:
                        end = at
                    if parcel is None:
                        continue
                for each in parcel.notices:
                    subscriber.send(feed, each)
                frames += parcel.frames
                written += parcel.bytes
                if written >= bytes_max:
                    end = at
                feed.cursor = parcel.cursor
                if parcel.cursor < parcel.head:
                    feed.lagging = True
                    self._backlog[feed] = None
                elif feed.lagging:
                    feed.lagging = False
                    notice = caught_up.get(parcel.cursor)
                    if notice is None:
                        notice = caught_up[parcel.cursor] = notices.caught_up(self.name, parcel.cursor)
                    subscriber.send(feed, notice)
        except Exception:
            # A defect with one feed must not silence the others.
            log.exception('delivering topic "%s" failed', topic.name)
            self._give_up(todo[at - 1])
        self._at = at
        self._delivery.pushes.count(frames, written)
        if at == len(todo):
            self._forget_parcels()
        return at - begin, written

    def _parcels_now(self) -> dict[tuple[int, View], Parcel | None]:
        """What was read in this round, as long as the log is as it was: while its head stands, it can only shrink."""
        log = self.topic.log
        state = (log.head, log.count, log.start, log.evict_floor, len(log.lost), self.synced_seq)
        if state != self._parcels_state:
            self._forget_parcels()
            self._parcels_state = state
        # What could not be read, or was not synced, is tried again.
        self._parcels = {key: parcel for key, parcel in self._parcels.items() if parcel is not None}
        return self._parcels

    def _room_for(self, parcel: Parcel | None) -> dict[tuple[int, View], Parcel | None]:
        """The parcels to which this one is added, without those before it where they have become too many."""
        self._parcels_bytes += 0 if parcel is None else parcel.bytes
        if self._parcels_bytes > PARCELS_BYTES_MAX:
            self._forget_parcels()
        return self._parcels

    def _forget_parcels(self) -> None:
        self._parcels = {}
        self._parcels_bytes = 0
        self._unfiltered.clear()

    def _give_up(self, feed: Feed) -> None:
        """End a feed that cannot be served, and report that to its client as far as possible."""
        try:
            feed.subscriber.unreadable(feed, Internal())
        except Exception:
            log.exception("the failure of a stream could not be reported to its client")
        if feed.channel is self:
            self.detach(feed)

    def _begin_round(self) -> None:
        self.round_ms = self._delivery.tick_ms
        self._todo = list(self.feeds if self._fresh or self.topic.deleted else self._backlog)
        self._at = 0
        self._fresh = False
        self.round_since_ns, self._fresh_since_ns = self._fresh_since_ns, 0
        self._backlog.clear()

    def _end_feeds(self, feeds_max: int) -> int:
        """The topic is gone: notify every feed that takes it now, and forget that feed."""
        goodbye = notices.topic_deleted(self.name, self.topic.log.head)
        begin, end = self._at, min(len(self._todo), self._at + feeds_max)
        for feed in self._todo[begin:end]:
            subscriber = feed.subscriber
            if feed.channel is not self:
                continue
            if subscriber.link.write_paused:
                subscriber.stall()
                continue
            subscriber.send(feed, goodbye)
            self.detach(feed)
            subscriber.ended(feed)
        self._at = end
        return end - begin

    # Reading

    def _fetch(self, feed: Feed, first: bool) -> Parcel | None:
        """What a feed gets now, or None where that is not in memory, not synced yet, or cannot be read."""
        try:
            if first and not (feed.view.strong and self.synced_seq < 0):
                return self._read(feed.cursor, feed.view)
        except Miss as miss:
            self._delivery.run_then(miss.job, self._fetched)
        except TopicsError as error:
            feed.subscriber.unreadable(feed, error)
            return None
        self._missing[feed] = None
        return None

    def _fetched(self) -> None:
        """Something was read from the disk, or synced: every feed that waited for that tries again."""
        missing, self._missing = self._missing, {}
        for feed in missing:
            if feed.channel is self:
                self._backlog[feed] = None
        if self._backlog:
            self._delivery.dirty(self)

    def _read(self, cursor: int, view: View) -> Parcel:
        topic = self.topic
        window = view.plain if topic.config.dedupe_node else view.echoing
        upto = self._visible() if view.strong else None
        if window.nodes:
            difference, records = self._read_unfiltered(cursor, view, upto)
            texts = [text for node, text in records if node not in window.nodes]
        else:
            difference = topic.reading(read, topic.log, self._delivery.engine.wires, cursor, window, upto)
            texts = difference.pieces
        head = difference.head_seq if upto is None else max(upto, difference.next_from_seq)
        found: list[Notice] = []
        lost = difference.tombstone
        if lost is not None:
            found.append(notices.tombstone(self.name, lost))
            cursor = found[0].cursor
        if texts:
            found.append(notices.record(self.name, texts, cursor, difference.next_from_seq, head))
        return Parcel(found, difference.next_from_seq, head)

    def _read_unfiltered(self, cursor: int, view: View, upto: int | None) -> Unfiltered:
        """What follows a cursor, read once for all views that filter different nodes."""
        key = (cursor, view.unfiltered, upto)
        unfiltered = self._unfiltered.get(key)
        if unfiltered is None:
            topic, wires = self.topic, self._delivery.engine.wires
            difference = topic.reading(read, topic.log, wires, cursor, view.echoing, upto, True)
            unfiltered = self._unfiltered[key] = (difference, labelled(difference, wires, view.echoing.fields))
        return unfiltered

    # What is synced

    def _visible(self) -> int:
        return self.topic.log.head if self._unsynced is None else self.synced_seq

    def _note_unsynced(self) -> None:
        """Remember up to which lsn the log must be synced before what is published now may be shown."""
        topic = self.topic
        if topic.config.durability in ("fsync", "ephemeral") or self._unsynced is None:
            self.synced_seq = topic.log.head
            return
        shard = self._delivery.engine.store.shard_of(topic.id)
        self._unsynced.append((shard.written_lsn, topic.log.head))
        if self.look_at_sync():
            self._delivery.unsynced.add(self.look_at_sync)

    def look_at_sync(self) -> bool:
        """Show what has been synced since; whether something still waits."""
        if not self._unsynced:
            return False
        synced_lsn = self._delivery.engine.store.shard_of(self.topic.id).synced_lsn
        moved = False
        while self._unsynced and self._unsynced[0][0] <= synced_lsn:
            self.synced_seq = max(self.synced_seq, self._unsynced.popleft()[1])
            moved = True
        if moved:
            self._fresh = True
            self._fetched()
            self._delivery.dirty(self)
        return bool(self._unsynced)
