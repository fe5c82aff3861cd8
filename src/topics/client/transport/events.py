"""EventParser: server-sent events out of the bytes of a stream; it knows no socket (HTML standard, 9.2.6).

Only what the server sends is kept: `event`, `data` and `id`. An event has a bound, and a line that is neither is
skipped, as the standard says.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from topics.client.transport.answer import Malformed

EVENT_BYTES_MAX: Final = 64 << 20
"""Above the largest event: 8 MiB of records, or one record of any size that a server is set to take."""
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event; `id` is that of the last event that had one."""

    kind: bytes
    data: bytes
    id: bytes


class EventParser:
    """Reads one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._kind = b""
        self._data: list[bytes] = []
        self._bytes = 0
        self._id = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are complete now."""
        text = self._rest + chunk if self._rest else chunk
        found: list[Event] = []
        at = 0
        size = len(text)
        while True:
            # The server ends lines with a line feed; a search for that alone is many times faster.
            end = text.find(b"\n", at)
            if end < 0:
                break
            line = text[at : end - 1] if end > at and text[end - 1] == 13 else text[at:end]
            at = end + 1
            if b"\r" in line:
                for part in _LINE_END.split(line):
                    self._line(part, found)
            else:
                self._line(line, found)
        self._rest = text[at:size]
        if self._bytes + len(self._rest) > EVENT_BYTES_MAX:
            raise Malformed(f"an event of the stream is larger than {EVENT_BYTES_MAX:,} bytes")
        return found

    def _line(self, line: bytes, found: list[Event]) -> None:
        if not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                found.append(Event(self._kind or b"message", data, self._id))
            self._kind, self._data, self._bytes = b"", [], 0
            return
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            self._data.append(value)
            self._bytes += len(value)
        elif name == b"event":
            self._kind = value
        elif name == b"id" and b"\0" not in value:
            self._id = value
