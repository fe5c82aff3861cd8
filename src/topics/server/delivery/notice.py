"""Notice: one thing that happened in a topic, rendered once and shared by every stream that gets it.

A notice is a batch of records, a tombstone, the news that a reader has caught up, or that the topic is gone. Its JSON
is the same on SSE and WebSocket; the framing around it is made when the first stream of that kind needs it and kept as
long as the notice is. SSE frames also carry the composite cursor of their stream, so a frame is shared by the streams
that have the same cursor: always among those that watch one topic, and among those that watch the same several topics
and are at the same position in each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from topics.engine.log.difference import Tombstone
from topics.engine.log.loss import RECREATED
from topics.server.http.account import Share

RECORD: Final = b"record"
TOMBSTONE: Final = b"tombstone"
CAUGHT_UP: Final = b"caught-up"
TOPIC_DELETED: Final = b"topic-deleted"

_LINE_BREAK: Final = re.compile(rb"\r\n|\r|\n")


def event(kind: bytes, json: bytes) -> bytes:
    """An SSE event without its `id`.

    A record's `data` is verbatim and may contain line breaks. In SSE a line break ends a field and a blank line ends
    the event, so each one becomes a further `data:` line; the client puts a line feed in its place, which JSON allows
    wherever the original line break was.
    """
    if b"\n" in json or b"\r" in json:
        json = _LINE_BREAK.sub(b"\ndata: ", json)
    return b"event: %b\ndata: %b\n\n" % (kind, json)


def text_frame(json: bytes) -> bytes:
    """A WebSocket text message in one unmasked frame, as servers send them (RFC 6455 §5.2).

    By hand, because every ack is one, and the library's general way costs as much as the rest of it.
    """
    size = len(json)
    if size < 126:
        return b"\x81%c%b" % (size, json)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), json)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), json)


class Notice:
    """One thing that happened, and the cursor after it."""

    __slots__ = ("_event", "_message", "alone", "alone_share", "cursor", "json", "kind", "message_share", "shared")

    def __init__(self, kind: bytes, json: bytes, cursor: int) -> None:
        self.kind = kind
        self.json = json
        self.cursor = cursor
        self.alone: bytes | None = None
        """The SSE frame for streams that watch this topic only."""
        self.alone_share: Share | None = None
        self.message_share: Share | None = None
        """How the frames above and below count once streams hold them that do not read."""
        self.shared: dict[bytes, bytes] | None = None
        """SSE frames for streams that watch several topics, by their id."""
        self._event: bytes | None = None
        self._message: bytes | None = None

    @property
    def event(self) -> bytes:
        """The SSE event without its `id`."""
        if self._event is None:
            self._event = event(self.kind, self.json)
        return self._event

    @property
    def message(self) -> bytes:
        """The WebSocket message, framed."""
        if self._message is None:
            op = self.kind.replace(b"-", b"_")
            self._message = text_frame(b'{"op":"%b",%b' % (op, self.json[1:]))
        return self._message


class Parcel:
    """What follows a cursor: notices to send in order, the cursor after all of them, and the head as it was."""

    __slots__ = ("bytes", "cursor", "frames", "head", "notices")

    def __init__(self, notices: Sequence[Notice], cursor: int, head: int) -> None:
        self.notices = notices
        self.cursor = cursor
        self.head = head
        # Summed up here, once for all streams that get it.
        self.frames = len(notices)
        self.bytes = sum([len(each.json) for each in notices])


def record(name: bytes, texts: list[bytes], from_seq: int, to_seq: int, head: int) -> Notice:
    """A batch of records, given as JSON objects."""
    json = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
        name,
        texts[0] if len(texts) == 1 else b",".join(texts),
        from_seq,
        to_seq,
        head,
    )
    return Notice(RECORD, json, to_seq)


def tombstone(name: bytes, lost: Tombstone) -> Notice:
    """An explicit gap; its cursor is the position after it."""
    cursor = lost.earliest_seq - 1 if lost.reason == RECREATED else lost.gap_to
    return Notice(TOMBSTONE, b'{"topic":"%b",%b' % (name, lost.wire()[1:]), cursor)


def caught_up(name: bytes, cursor: int) -> Notice:
    """The reader has everything there is."""
    return Notice(CAUGHT_UP, b'{"topic":"%b","head_seq":%d}' % (name, cursor), cursor)


def topic_deleted(name: bytes, head: int) -> Notice:
    """The topic is gone."""
    return Notice(TOPIC_DELETED, b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (name, head), head)
