"""Consumption: topics from where a consumer has got to, item by item, with its progress kept.

An item counts as handled when the next one is asked for; what is handled is committed at most every `commit_ms`, before
the consumer waits for more, and at its end. So every item is delivered at least once, and one that was being handled
when the program died is delivered again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypedDict, TypeVar

from topics.client.errors import Unreachable
from topics.client.operations.call import Patience, log
from topics.client.operations.cursors import CURSORS_TOPIC, Cursors, FileCursors, TopicCursors
from topics.client.operations.operation import Operation
from topics.client.operations.read import MISSING, ON_LOSS, PASSING, Bookmark, FollowOptions, OnLoss, TopicRead
from topics.client.operations.watch import TopicsWatch
from topics.client.options import check_choice, check_options
from topics.client.record import Record, Tombstone
from topics.client.transport.request import path
from topics.errors import TopicNotFound, TopicsError
from topics.names import check_topic_name

T = TypeVar("T")

COMMIT_MS: Final = 1_000
STARTS: Final = ("earliest", "latest")


class ConsumerOptions(TypedDict, total=False):
    """How a consumer works.

    - `cursors`: a file (a path with a suffix or a directory, or a `Path`), or the name of a topic, where it keeps its
      cursors; by default the topic `topics.consumers`.
    - `start`: where to begin with a topic that it has not read before: `"earliest"` (the default) or `"latest"`.
    - `commit_ms`: how often to commit (1000); 0 for after each item.
    - `match`, `node`, `limit`: as for a read. `missing`: `"wait"` (the default) or `"raise"`.
    - `signals`: False to leave SIGTERM to the program.
    """

    cursors: str | Path
    start: Literal["earliest", "latest"]
    commit_ms: int
    match: str | Sequence[str]
    node: str | Sequence[str]
    limit: int
    missing: Literal["raise", "wait"]
    signals: bool


class Lag(NamedTuple):
    """How far a consumer is behind: records that it has not handled, and the age of the last one that it has."""

    records: int
    seconds: float


class Consumption(Generic[T]):
    """The state of one consumer."""

    def __init__(
        self,
        name: str,
        topics: Iterable[str],
        data: Any,
        patience: Patience,
        on_loss: OnLoss,
        options: ConsumerOptions,
    ) -> None:
        check_options("consumer", options, ConsumerOptions)
        check_choice("on_loss", on_loss, ON_LOSS)
        check_choice("start", options.get("start", "earliest"), STARTS)
        check_choice("missing", options.get("missing", "wait"), MISSING)
        if not name:
            raise ValueError("a consumer needs a name, under which its cursors are kept")
        self.name = name
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        if not self.topics:
            raise ValueError("a consumer needs at least one topic")
        for topic in self.topics:
            check_topic_name(topic)
        self._data = data
        self._patience = patience
        self._options = options
        self._cursors = _cursors(name, options.get("cursors"), patience)
        self._commit_s = options.get("commit_ms", COMMIT_MS) / 1000
        self._source: TopicRead[T] | TopicsWatch[T] | None = None
        self._items: Iterator[Record[T] | Tombstone] = iter(())
        self._current: Record[T] | Tombstone | None = None
        self._raises = on_loss == "raise"
        self._last_ts: dict[str, int] = {}
        self._committed_s = 0.0
        self._uncommitted = False
        self.bookmarks: dict[str, Bookmark] = {}
        self.signals = options.get("signals", True)

    def pop(self) -> Record[T] | Tombstone | None:
        """The next item that is here already; the one before it counts as handled."""
        self.handled()
        if self._uncommitted and self._patience.now() - self._committed_s >= self._commit_s:
            return None
        for item in self._items:
            self._current = item
            if self._raises and type(item) is Tombstone:
                raise item.error()
            return item
        return None

    def handled(self) -> None:
        """The item that was delivered last is handled."""
        item, self._current = self._current, None
        if item is not None:
            self._uncommitted = True
            self.bookmarks[item.topic].cursor = item.next_from_seq
            if type(item) is not Tombstone:
                self._last_ts[item.topic] = item.ts  # type: ignore[union-attr]

    def put_back(self) -> None:
        """The item that was delivered last is not handled: it comes again."""
        item, self._current = self._current, None
        if item is not None:
            self._items = itertools.chain((item,), self._items)

    def fetch(self) -> Operation[None]:
        """Commit what is due, and wait for more."""
        source = self._source
        if source is None:
            source = self._source = yield from self._begin()
        due = self._patience.now() - self._committed_s >= self._commit_s
        if self._uncommitted and (due or self._caught_up()):
            yield from self._try_to_commit()
        # What was left in the batch comes first: a commit was due in the middle of it.
        rest = list(self._items)
        if not rest:
            batch = yield from source.batch()
            assert batch is not None
            rest = batch.items
            self._renew_epochs(source)
        self._items = iter(rest)

    def _begin(self) -> Operation[TopicRead[T] | TopicsWatch[T]]:
        saved = yield from self._cursors.load()
        options = FollowOptions(missing=self._options.get("missing", "wait"))
        for name in ("match", "node", "limit"):
            if name in self._options:
                options[name] = self._options[name]
        self.bookmarks = {topic: saved.get(topic, Bookmark()) for topic in self.topics}
        self._committed_s = self._patience.now()
        if self._options.get("start") == "latest":
            yield from self._to_heads([topic for topic in self.topics if topic not in saved])
        if len(self.topics) > 1:
            copies = {topic: Bookmark(bookmark.cursor, bookmark.epoch) for topic, bookmark in self.bookmarks.items()}
            return TopicsWatch(copies, self._data, self._patience, options)
        [topic] = self.topics
        bookmark = self.bookmarks[topic]
        options["from_seq"] = bookmark.cursor
        if bookmark.epoch is not None:
            options["epoch"] = bookmark.epoch
        return TopicRead(topic, path("v0", "topics", topic), self._data, self._patience, options, follow=True)

    def _to_heads(self, topics: list[str]) -> Operation[None]:
        for topic in topics:
            try:
                _, head_seq = yield from self.bookmarks[topic].check(topic, path("v0", "topics", topic), self._patience)
            except TopicNotFound:
                continue
            self.bookmarks[topic].cursor = head_seq

    def _renew_epochs(self, source: TopicRead[T] | TopicsWatch[T]) -> None:
        if isinstance(source, TopicRead):
            self.bookmarks[source.topic].epoch = source.epoch
            return
        for topic, bookmark in source.bookmarks.items():
            self.bookmarks[topic].epoch = bookmark.epoch

    def _caught_up(self) -> bool:
        heads = self._heads()
        return all(bookmark.cursor >= heads.get(topic, 0) for topic, bookmark in self.bookmarks.items())

    def _heads(self) -> Mapping[str, int]:
        source = self._source
        if source is None:
            return {}
        return {source.topic: source.head_seq} if isinstance(source, TopicRead) else source.heads

    def commit(self) -> Operation[None]:
        """Keep where it has got to."""
        if not self._uncommitted:
            return
        yield from self._cursors.save(self.bookmarks)
        self._uncommitted = False
        self._committed_s = self._patience.now()

    def _try_to_commit(self) -> Operation[None]:
        """Commit, or do so later: a server that is away for a while must not end a consumer."""
        try:
            yield from self.commit()
        except TopicsError as error:
            if not (isinstance(error, Unreachable) or error.status in PASSING):
                raise
            log.warning("the consumer %s could not commit yet: %s", self.name, error.message)
            self._committed_s = self._patience.now()

    def lag(self) -> dict[str, Lag]:
        """How far it is behind in each topic, as far as the server has reported."""
        heads = self._heads()
        now_ms = time.time() * 1000
        found = {}
        for topic in self.topics:
            bookmark = self.bookmarks.get(topic, Bookmark())
            records = max(0, heads.get(topic, 0) - bookmark.cursor)
            last_ts = self._last_ts.get(topic)
            found[topic] = Lag(records, 0.0 if not records or last_ts is None else max(0.0, (now_ms - last_ts) / 1000))
        return found


def _cursors(consumer: str, kept_in: str | Path | None, patience: Patience) -> Cursors:
    if isinstance(kept_in, Path) or (kept_in is not None and "/" in kept_in):
        return FileCursors(consumer, kept_in)
    topic = kept_in or CURSORS_TOPIC
    check_topic_name(topic)
    return TopicCursors(consumer, topic, patience)
