"""Cursors: where a consumer has got to, kept in a file or in a topic of the server.

In a file: JSON, replaced in one step, so that a crash leaves the old or the new. In a topic (`topics.consumers` unless
another is named): one record for each commit, tagged with the consumer's name; older ones of the same consumer are
deleted. The last one counts, whichever machine has written it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from topics.client.errors import BadData
from topics.client.operations.call import Patience, call, log
from topics.client.operations.operation import Do, Operation
from topics.client.operations.read import Bookmark, FollowOptions, TopicRead
from topics.client.operations.write import record_text, write
from topics.client.record import Tombstone
from topics.client.transport.request import Request, path
from topics.errors import Forbidden, TopicNotFound, TopicsError

CURSORS_TOPIC: Final = "topics.consumers"
SAVES_PER_TRIM: Final = 50


class SavedCursor(msgspec.Struct):
    """A cursor and its epoch, as they are kept."""

    seq: int
    epoch: int | None = None


class Saved(msgspec.Struct):
    """One commit of a consumer."""

    consumer: str
    cursors: dict[str, SavedCursor]
    committed_ts: int = 0

    @staticmethod
    def of(consumer: str, bookmarks: Mapping[str, Bookmark]) -> Saved:
        """What is kept of these bookmarks now."""
        cursors = {name: SavedCursor(bookmark.cursor, bookmark.epoch) for name, bookmark in bookmarks.items()}
        return Saved(consumer, cursors, int(time.time() * 1000))

    def bookmarks(self) -> dict[str, Bookmark]:
        """Where to go on in each topic."""
        return {name: Bookmark(kept.seq, kept.epoch) for name, kept in self.cursors.items()}


class Cursors(Protocol):
    """Where a consumer keeps its cursors; both are operations."""

    def load(self) -> Operation[dict[str, Bookmark]]:
        """The bookmarks that were saved last."""

    def save(self, bookmarks: Mapping[str, Bookmark]) -> Operation[None]:
        """Keep these bookmarks."""


class FileCursors:
    """Cursors in a file."""

    def __init__(self, consumer: str, file: str | Path) -> None:
        self._consumer = consumer
        self._file = Path(file)

    def load(self) -> Operation[dict[str, Bookmark]]:
        """The bookmarks that were saved last."""
        saved: Saved | None = yield Do(self._read)
        if saved is None:
            return {}
        if saved.consumer != self._consumer:
            raise BadData(f'{self._file} holds the cursors of "{saved.consumer}", not of "{self._consumer}"')
        return saved.bookmarks()

    def _read(self) -> Saved | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Saved)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise BadData(f"{self._file} does not hold cursors: {error}; without the file, it begins anew") from None

    def save(self, bookmarks: Mapping[str, Bookmark]) -> Operation[None]:
        """Keep these bookmarks."""
        text = msgspec.json.encode(Saved.of(self._consumer, bookmarks))
        yield Do(lambda: self._write(text))

    def _write(self, text: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_name(f"{self._file.name}.{os.getpid()}.new")
        try:
            with written.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            written.replace(self._file)
        except BaseException:
            with contextlib.suppress(OSError):
                written.unlink()
            raise


def saved(topic: str, patience: Patience) -> Operation[list[Saved]]:
    """The last commit of every consumer that keeps its cursors in a topic."""
    read: TopicRead[Saved] = TopicRead(topic, path("v0", "topics", topic), Saved, patience, {}, follow=False)
    found: dict[str, Saved] = {}
    try:
        while (batch := (yield from read.batch())) is not None:
            for item in batch.items:
                if isinstance(item, Tombstone):
                    continue
                # Any client may write to the topic: what is no commit is none of a consumer.
                with contextlib.suppress(BadData):
                    found[item.data.consumer] = item.data
    except TopicNotFound:
        return []
    return list(found.values())


class TopicCursors:
    """Cursors in a topic of the server."""

    def __init__(self, consumer: str, topic: str, patience: Patience) -> None:
        self._consumer = consumer
        self._topic = topic
        self._target = path("v0", "topics", topic)
        self._patience = patience
        self._saves = 0
        self._trims = True

    def load(self) -> Operation[dict[str, Bookmark]]:
        """The bookmarks that were saved last."""
        options = FollowOptions(match=self._consumer)
        read: TopicRead[Saved] = TopicRead(self._topic, self._target, Saved, self._patience, options, follow=False)
        found: Saved | None = None
        try:
            while (batch := (yield from read.batch())) is not None:
                for item in batch.items:
                    if not isinstance(item, Tombstone):
                        found = item.data
        except TopicNotFound:
            return {}
        return found.bookmarks() if found else {}

    def save(self, bookmarks: Mapping[str, Bookmark]) -> Operation[None]:
        """Keep these bookmarks."""
        text = record_text(Saved.of(self._consumer, bookmarks), self._consumer)
        written = yield from write(self._target, (text,), self._patience, {})
        self._saves += 1
        if self._trims and self._saves % SAVES_PER_TRIM == 1:
            body = msgspec.json.encode({"before_seq": written.seq, "match": self._consumer})
            try:
                yield from call(Request(b"POST", self._target + b"/delete", body), self._patience)
            except Forbidden:
                self._trims = False
            except TopicsError as error:
                log.warning("old cursors of %s could not be deleted: %s", self._consumer, error.message)
