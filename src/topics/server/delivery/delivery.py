"""Delivery: pushes what is published to every stream that follows it, without holding up anything else.

A publish makes its channel dirty. Dirty channels wait in `Bands`, by effective priority, and are served in slices: a
slice writes at most `SLICE_FEEDS` frames or `SLICE_BYTES`, or takes `SLICE_NS`, then gives the loop back, so that a
request that arrives while a thousand streams are fed waits for one slice and not for a thousand. Heartbeats go through
the same slices, after the records.

Under pressure (`level`, set by the governor) channels rest for a moment between rounds, so that records leave in
larger batches, and those of negative priority wait until ageing lifts them; their streams are warned once, with an
`error` 429 that closes nothing. Nothing is dropped or reordered by this.

Two times are kept for the length of a slice: `now_ms` is the wall clock, by which records expire; `tick_ms` is
monotonic, by which waiting is measured.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from topics.engine import Engine
from topics.engine.topic import Topic
from topics.server.api.attempts import RunThen
from topics.server.api.principal import Principal
from topics.server.delivery.channel import Channel, Unsynced
from topics.server.delivery.subscriber import Feed, Subscriber
from topics.server.delivery.wheel import Wheel
from topics.server.flow.bands import AGE_TICK_MS, Bands
from topics.server.flow.pressure import COALESCE, PAUSE_LOW_PRIORITY
from topics.server.http.account import Account
from topics.server.http.traffic import Pushes
from topics.settings import Settings

SLICE_FEEDS: Final = 128
SLICE_NS: Final = 1_000_000
SLICE_BYTES: Final = 1 << 20
"""The kernel copies what it is given, after the slice: about a millisecond's worth."""
REST_MS: Final = 10
PACE_RETRY_AFTER_MS: Final = 1_500
PACED_TOPICS_MAX: Final = 16
WATCH_TOGETHER: Final = 16
REVOKED_TOGETHER: Final = 64
TIGHT_TIMEOUT_MS: Final = 1_000
"""How long a stream may leave everything unread while too much is buffered for all clients."""


class Delivery:
    """The one loop that serves all streams."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        run_then: RunThen,
        unsynced: Unsynced,
        account: Account,
        settings: Settings,
        pushes: Pushes,
    ) -> None:
        """`pushes` counts what is sent."""
        self.account = account
        self.pushes = pushes
        self.open: dict[Subscriber, None] = {}
        self.engine = engine
        self.run_then = run_then
        self.unsynced = unsynced
        self.level = 0
        self.now_ms = engine.clock.now_ms()
        self.tick_ms = engine.clock.elapsed_ns() // 1_000_000
        self.stalled: dict[Subscriber, None] = {}
        self.wheel: Wheel[Subscriber] = Wheel(self.tick_ms)
        self._loop = loop
        self._buffer_grace_ms = settings.buffer_grace_ms
        self._slow_consumer_timeout_ms = settings.slow_consumer_timeout_ms
        self._channels: dict[int, Channel] = {}
        self._bands: Bands[Channel] = Bands(self._priority)
        self._resting: dict[Channel, None] = {}
        self._beats: deque[Subscriber] = deque()
        self._watched: deque[Subscriber] = deque()
        self._revoked: deque[Subscriber] = deque()
        self._unflushed: list[Subscriber] = []
        self._slice_due = False
        self._rest_due = False
        self._tick_due = False

    def _priority(self, channel: Channel, waited_ms: int) -> int:
        return channel.topic.effective_priority(self.now_ms, waited_ms)

    def refresh(self) -> None:
        """Read the clock."""
        clock = self.engine.clock
        self.now_ms = clock.now_ms()
        self.tick_ms = clock.elapsed_ns() // 1_000_000

    # Feeds and streams that come and go

    def follow(self, feed: Feed, topic: Topic, epoch: int | None = None) -> None:
        """Let a feed follow a topic from its cursor on; the cursor is one of `epoch` where that is known."""
        channel = self._channels.get(topic.id)
        if channel is None:
            channel = self._channels[topic.id] = Channel(self, topic)
        channel.attach(feed, epoch)

    def forget(self, channel: Channel) -> None:
        """A channel has no feeds any more."""
        self._channels.pop(channel.topic.id, None)
        self._bands.discard(channel)
        self.unsynced.discard(channel.look_at_sync)

    def join(self, subscriber: Subscriber) -> None:
        """A stream has begun."""
        self.open[subscriber] = None
        self.pushes.open[subscriber.kind] = self.pushes.open.get(subscriber.kind, 0) + 1

    def enrol(self, subscriber: Subscriber, due_ms: int) -> None:
        """Look at a stream when it is due, for its heartbeat."""
        subscriber.beat_ms = self.wheel.add(subscriber, due_ms)

    def leave(self, subscriber: Subscriber) -> None:
        """A stream has ended, in whatever way: nothing of it stays."""
        subscriber.closed = True
        if subscriber in self.open:
            del self.open[subscriber]
            self.pushes.open[subscriber.kind] -= 1
        subscriber.release()
        self.wheel.remove(subscriber, subscriber.beat_ms)
        self.stalled.pop(subscriber, None)
        for feed in list(subscriber.feeds()):
            if feed.channel is not None:
                feed.channel.detach(feed)

    def revoke(self, principals: frozenset[Principal]) -> None:
        """End the streams of keys that are not valid any more, some in each turn of the loop."""
        self._revoked.extend(each for each in self.open if each.principal in principals)
        self._revoke_some()

    def _revoke_some(self) -> None:
        for _ in range(min(REVOKED_TOGETHER, len(self._revoked))):
            subscriber = self._revoked.popleft()
            if not subscriber.closed:
                subscriber.revoke()
        if self._revoked:
            self._loop.call_soon(self._revoke_some)

    # Serving

    def dirty(self, channel: Channel) -> None:
        """There is something for a feed of the channel."""
        if self.level >= COALESCE and self.tick_ms - channel.round_ms < REST_MS and channel not in self._bands:
            self._resting[channel] = None
            if not self._rest_due:
                self._rest_due = True
                self._loop.call_later(REST_MS / 1000, self._rested)
            return
        self._bands.put(channel, self.tick_ms)
        self._wake()

    def flush_soon(self, subscriber: Subscriber) -> None:
        """Have a stream write what it gathers at the end of the next slice."""
        self._unflushed.append(subscriber)
        self._wake()

    def _wake(self) -> None:
        if not self._slice_due:
            self._slice_due = True
            self._loop.call_soon(self._slice)

    def _rested(self) -> None:
        self._rest_due = False
        self.refresh()
        resting, self._resting = self._resting, {}
        for channel in resting:
            if channel.feeds:
                self._bands.put(channel, self.tick_ms)
        self._wake()

    def _slice(self) -> None:
        self._slice_due = False
        self.refresh()
        bands = self._bands
        floor = 0 if self.level >= PAUSE_LOW_PRIORITY else None
        deadline_ns = self.engine.clock.elapsed_ns() + SLICE_NS
        left = SLICE_FEEDS
        bytes_left = SLICE_BYTES
        while left > 0:
            channel = bands.take(self.tick_ms, floor)
            if channel is None:
                break
            served, written = channel.deliver(left, bytes_left, deadline_ns)
            left -= served + 1
            bytes_left -= written
            now_ns = self.engine.clock.elapsed_ns()
            if channel.mid_round:
                bands.put(channel, self.tick_ms)
            else:
                if channel.round_since_ns:
                    self.pushes.lag.add(now_ns - channel.round_since_ns)
                if channel.hungry and channel.feeds:
                    self.dirty(channel)
            if bytes_left <= 0 or now_ns > deadline_ns:
                left = 0
        while left > 0 and self._beats:
            left -= 1
            subscriber = self._beats.popleft()
            if not subscriber.closed:
                self.enrol(subscriber, subscriber.beat(self.tick_ms))
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, []
            for subscriber in unflushed:
                subscriber.flush()
        if left <= 0 or self._beats:
            self._wake()
        if len(bands) and not self._tick_due:
            self._tick_due = True
            self._loop.call_later(AGE_TICK_MS / 1000, self._age)

    def _age(self) -> None:
        self._tick_due = False
        if len(self._bands):
            self.refresh()
            self._bands.age(self.tick_ms)
            self._wake()

    # What happens by time alone

    def pulse(self) -> None:
        """Due every tenth of a second or so: heartbeats, streams that do not read, pacing."""
        self.refresh()
        self._beats.extend(self.wheel.turn(self.tick_ms))
        if self._beats:
            self._wake()
        self._watch_stalled()
        if self.level >= PAUSE_LOW_PRIORITY:
            self._warn_paced()

    def _watch_stalled(self) -> None:
        """Look at the streams that do not read, as many as a slice allows; the others with the next pulse."""
        deadline_ns = self.engine.clock.elapsed_ns() + SLICE_NS
        # Where too much is buffered, a stream has until the next look to read, and not its whole time (FAIR-5).
        timeout_ms = TIGHT_TIMEOUT_MS if self.account.tight else self._slow_consumer_timeout_ms
        self.pushes.stalled = len(self.stalled)
        if not self._watched:
            self._watched.extend(self.stalled)
        for left in range(len(self._watched), 0, -1):
            subscriber = self._watched.popleft()
            if subscriber.closed:
                continue
            subscriber.watch_stall(self.tick_ms, self._buffer_grace_ms, timeout_ms)
            if left % WATCH_TOGETHER == 0 and self.engine.clock.elapsed_ns() > deadline_ns:
                break

    def _warn_paced(self) -> None:
        """Warn each stream that follows a paused topic, once until the pressure is gone."""
        paced: dict[Subscriber, list[str]] = {}
        for channel in self._bands.below(0):
            for feed in channel.feeds:
                if not feed.subscriber.paced and not feed.subscriber.link.write_paused:
                    names = paced.setdefault(feed.subscriber, [])
                    if len(names) < PACED_TOPICS_MAX:
                        names.append(channel.topic.name)
        for subscriber, names in paced.items():
            subscriber.paced = True
            subscriber.warn(PACE_RETRY_AFTER_MS, names)

    def set_level(self, level: int) -> None:
        """The pressure has changed."""
        if level < PAUSE_LOW_PRIORITY <= self.level:
            for channel in self._channels.values():
                for feed in channel.feeds:
                    feed.subscriber.paced = False
            self._wake()
        self.level = level
