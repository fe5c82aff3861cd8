"""What can go wrong on the client's side, in one family with what a server refuses (`topics.errors`).

A refusal is raised as the class of its `code` (`topic_not_found` is `TopicNotFound`), with the server's `message`,
`detail` and `request_id`; a code that this version does not know is a plain `TopicsError` that carries it. Every class
here has a code of its own, so that a program may branch on `code` alone.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from topics.errors import TopicsError

SHOWN_BYTES_MAX: Final = 200


class Unreachable(TopicsError):
    """The server cannot be reached, or the connection broke before it answered."""

    code = "unreachable"
    status = 0

    def __init__(self, message: str, *, sent: bool = False, reused: bool = False) -> None:
        """`sent`: the request may have arrived; `reused`: on a connection that had served others before."""
        super().__init__(message)
        self.sent = sent
        self.reused = reused


class TimedOut(Unreachable):
    """The server did not answer in time."""

    code = "timed_out"


class BadAnswer(TopicsError):
    """What answers there is not a topics server."""

    code = "bad_answer"
    status = 0


class BadAddress(TopicsError):
    """The address, key, proxy or certificate of a client is not valid."""

    code = "bad_address"
    status = 0


class BadData(TopicsError):
    """The data of a record is not of the type that was asked for."""

    code = "bad_data"
    status = 0


class RecordsLost(TopicsError):
    """Records were lost before they were read.

    `gap_from` and `gap_to` are the first and the last seq of the gap, `reason` says why, and a read from
    `next_from_seq` goes on after it.
    """

    code = "records_lost"
    status = 0

    def __init__(self, topic: str, gap_from: int, gap_to: int, reason: str, next_from_seq: int) -> None:
        # After a new beginning the gap counts seqs that nobody can relate to the old ones.
        lost = f"seqs {gap_from} to {gap_to} were lost ({reason}) before they were read"
        anew = "it was deleted and created anew, and what was not read before is lost (recreated)"
        super().__init__(
            f'topic "{topic}": {anew if reason == "recreated" else lost}; read on from {next_from_seq}, or ask for'
            ' on_loss="yield" to get losses as Tombstones'
        )
        self.topic = topic
        self.gap_from = gap_from
        self.gap_to = gap_to
        self.reason = reason
        self.next_from_seq = next_from_seq


class NotWritten(TopicsError):
    """Records of a producer were not written.

    `records` are their texts, in order, and `cause` says why. `maybe_written` says how many of them, the first ones,
    may have been stored all the same, because the connection broke and stayed broken.
    """

    code = "not_written"
    status = 0

    def __init__(self, cause: TopicsError, records: list[bytes], *, maybe_written: int = 0) -> None:
        count = "1 record was" if len(records) == 1 else f"{len(records):,} records were"
        super().__init__(f"{count} {'perhaps ' if maybe_written else ''}not written: {cause.message}")
        self.cause = cause
        self.records = records
        self.maybe_written = maybe_written
        self.__cause__ = cause


class Closed(TopicsError):
    """The client, producer or consumer was closed."""

    code = "closed"
    status = 0


def _by_code(root: type[TopicsError]) -> dict[str, type[TopicsError]]:
    found: dict[str, type[TopicsError]] = {}
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            found |= {kind.code: kind, **_by_code(kind)}
    return found


_CLASSES: Final = _by_code(TopicsError)


class _Error(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}
    request_id: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


_decode: Final = msgspec.json.Decoder(_Envelope).decode


def refusal(status: int, content: bytes) -> TopicsError:
    """The answer of a server that refused a request, as an exception."""
    try:
        error = _decode(content).error
    except msgspec.DecodeError:
        shown = content[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
        failed = BadAnswer(f"the answer was {status} and is not from a topics server: {shown}")
        failed.status = status  # type: ignore[misc]
        return failed
    kind = _CLASSES.get(error.code, TopicsError)
    refused = kind(error.message)
    refused.detail = error.detail
    refused.request_id = error.request_id
    retry_after_ms = error.detail.get("retry_after_ms")
    refused.retry_after_ms = retry_after_ms if isinstance(retry_after_ms, int) else None
    # A newer server may have codes that this version does not know, or another status for one that it does.
    refused.code = error.code  # type: ignore[misc]
    refused.status = status  # type: ignore[misc]
    return refused
