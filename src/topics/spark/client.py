"""Client: the few calls that a scan and a sink make, over one kept-alive connection.

Every call is safe to repeat (reads, and writes that carry a producer seq), so a connection that breaks, a server that
restarts and an answer of 408, 422, 429 or 503 are retried with growing pauses until the time for retries is over. The
error then names the option that is to blame. HTTP is that of the Python library (`topics.client.transport`).
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from topics.client.errors import BadAddress, BadAnswer, TimedOut
from topics.client.errors import Unreachable as NoAnswer
from topics.client.transport import blocking
from topics.client.transport.address import Address as ServerAddress
from topics.client.transport.request import Request
from topics.errors import TopicsError
from topics.spark.errors import BadOption, ServerRefused, Unreachable
from topics.spark.options import RETRY_TIMEOUT_MS, Address

TOPIC_NOT_FOUND: Final = "topic_not_found"
TIMEOUT_S: Final = 10.0
"""Well below the time for retries, so that a server that stops answering is asked again."""
ANSWER_TIMEOUT_S: Final = 60.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
PLANNING_RETRY_MS: Final = 3_000
# Larger answers are hardly faster, and make writers wait for longer.
ANSWER_BYTES: Final = 1 << 19
_LEAD: Final = struct.Struct("<4sI")
_MAGIC: Final = b"TBKS"
# 422 is a topic that is full until its consumers have caught up.
_RETRIED: Final = frozenset((408, 422, 429, 503))


class Gap(NamedTuple):
    """Records that are gone, both ends included."""

    gap_from: int
    gap_to: int
    reason: str

    @property
    def missed_estimate(self) -> int:
        """About how many records were lost."""
        return max(0, self.gap_to - self.gap_from + 1)


class SealedFile(NamedTuple):
    """A sealed segment as the server names it, and the ranges of seqs that were deleted from it."""

    first_seq: int
    last_seq: int
    file: str
    cold: bool
    bytes: int
    deleted: list[list[int]]


@dataclass
class Plan:
    """What the server reports about a topic before it is scanned."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    gaps: list[Gap]
    from_ts_seq: int = 0
    to_ts_seq: int = 0
    segments: list[SealedFile] = field(default_factory=list)
    server: int = 0
    """Which of several servers has the topic."""


class Answer(NamedTuple):
    """The Blocks after a cursor, and what the server reports with them."""

    epoch: int
    head_seq: int
    next_from_seq: int
    tombstone: Gap | None
    body: memoryview


class Client:
    """A connection to one server. `retry_ms` is how long a call is retried."""

    def __init__(self, address: Address, retry_ms: int | None = None) -> None:
        self._address = address
        default = RETRY_TIMEOUT_MS if retry_ms is None else retry_ms
        self._retry_s = (default if address.retry_timeout_ms is None else address.retry_timeout_ms) / 1000
        self._pool: blocking.Pool | None = None

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def topics(self, prefix: str) -> list[str]:
        """The names of all topics with this prefix."""
        names: list[str] = []
        query = {"prefix": prefix, "page_size": "1000"}
        while True:
            page = json.loads(self._call("GET", f"/v0/topics?{urlencode(query)}"))
            names += [topic["topic"] for topic in page["topics"]]
            if "next_cursor" not in page:
                return names
            query["cursor"] = page["next_cursor"]

    def plan(self, topic: str, **query: int) -> Plan:
        """The epoch, floors and gaps of a topic."""
        answer = json.loads(self._call("GET", f"{_path(topic)}/plan?{urlencode(query)}", topic))
        answer["gaps"] = [_gap(gap) for gap in answer.get("gaps", ())]
        answer["segments"] = [SealedFile(**segment) for segment in answer.get("segments", ())]
        return Plan(**{each.name: answer[each.name] for each in fields(Plan) if each.name in answer} | {"topic": topic})

    def kind(self, topic: str) -> str:
        """Whether a topic is a `log` or a `queue`."""
        answer = json.loads(self._call("GET", f"{_path(topic)}?touch=false", topic))
        return str(answer["type"])

    def deleted(self, topic: str, epoch: int, from_seq: int, to_seq: int) -> list[tuple[int, int]] | None:
        """The runs of seqs in (from_seq, to_seq] that clients deleted, or None where the topic is another one by now.

        What was deleted below the evict floor is not known any more.
        """
        runs: list[tuple[int, int]] = []
        while from_seq < to_seq:
            query = urlencode({"deleted": "true", "from_seq": from_seq, "to_seq": to_seq})
            answer = json.loads(self._call("GET", f"{_path(topic)}/plan?{query}", topic))
            if answer["epoch"] != epoch:
                return None
            if answer["deleted_to_seq"] <= from_seq:
                break
            runs += [(first, last) for first, last in answer["deleted"]]
            from_seq = answer["deleted_to_seq"]
        return runs

    def blocks(self, topic: str, from_seq: int, to_seq: int) -> Answer:
        """The Blocks after `from_seq`, about half a mebibyte of them."""
        query = f"from_seq={from_seq}&to_seq={to_seq}&bytes={ANSWER_BYTES}"
        body = memoryview(self._call("GET", f"{_path(topic)}/blocks?{query}", topic))
        magic, length = _LEAD.unpack_from(body) if len(body) >= _LEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise BadOption("url", self._address.url, "what answers there is not a topics server that serves blocks")
        at = _LEAD.size + length
        answer = json.loads(bytes(body[_LEAD.size : at]))
        tombstone = None if answer["tombstone"] is None else _gap(answer["tombstone"])
        return Answer(answer["epoch"], answer["head_seq"], answer["next_from_seq"], tombstone, body[at:])

    def write(self, topic: str, body: bytes) -> dict[str, Any]:
        """Append records; the body must carry a producer seq, because it may be sent more than once."""
        answer: dict[str, Any] = json.loads(self._call("POST", f"{_path(topic)}?return_seqs=false", topic, body))
        return answer

    def _call(self, method: str, path: str, topic: str | None = None, body: bytes | None = None) -> bytes:
        """The body of a successful answer."""
        deadline = time.monotonic() + self._retry_s
        pauses = _pauses()
        while True:
            pause_s = next(pauses)
            try:
                status, content, retry_after_s = self._exchange(method, path, body)
            except (NoAnswer, BadAnswer, BadAddress) as error:
                self.close()
                self._give_up_on(error)
                if time.monotonic() + pause_s > deadline:
                    raise Unreachable(
                        f'the server at {self._address.url} (option "url") cannot be reached: {_reason(error)}; '
                        f"gave up after {self._retry_s:g} s of retries"
                    ) from None
                time.sleep(pause_s)
                continue
            if status < 300:
                return content
            refused = self._refusal(status, content, topic)
            pause_s = max(pause_s, min(retry_after_s, PAUSE_MAX_S))
            if status not in _RETRIED or time.monotonic() + pause_s > deadline:
                raise refused
            time.sleep(pause_s)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes, float]:
        if self._pool is None:
            address = ServerAddress(self._address.url, token=self._address.token, proxy=False)
            self._pool = blocking.Pool(address, size=1, connect_timeout_s=TIMEOUT_S)
        request = Request(method.encode(), path.encode(), body, timeout_s=TIMEOUT_S)
        # The server may be slow with a large answer, as long as it is not silent.
        request.until = time.monotonic() + ANSWER_TIMEOUT_S
        answer = blocking.SharedCourier(self._pool).exchange(request)
        retry_after = answer.headers.get(b"retry-after", b"")
        return answer.status, answer.body, float(retry_after) if retry_after.isdigit() else 0.0

    def _give_up_on(self, error: TopicsError) -> None:
        """Raise at once for what no retry can change."""
        cause = error.__context__
        if isinstance(cause, socket.gaierror):
            raise BadOption("url", self._address.url, f'the host "{self._address.host}" is not known') from None
        if isinstance(cause, ssl.SSLError):
            raise BadOption("url", self._address.url, f"no TLS connection: {cause.reason}") from None
        if isinstance(error, BadAnswer):
            raise BadOption("url", self._address.url, "what answers there does not speak HTTP") from None
        if isinstance(error, BadAddress):
            raise BadOption("url", self._address.url, error.message) from None

    def _refusal(self, status: int, content: bytes, topic: str | None) -> ServerRefused:
        code, message, url = "", content[:200].decode("utf-8", "replace"), self._address.url
        try:
            error = json.loads(content)["error"]
            code, message = error["code"], error["message"]
        except (ValueError, KeyError, TypeError):
            pass
        if status == 401 and self._address.token is None:
            text = f'option "token" is not set, and the server at {url} needs a key (401 {code})'
        elif status == 401:
            text = f'option "token": the server at {url} does not know the key (401 {code})'
        elif status == 403:
            text = f'option "token": the key may not do this at {url} (403 {code}): {message}'
        elif code == TOPIC_NOT_FOUND:
            text = f'topic "{topic}" (options "topic", "topics") does not exist at {url}'
        elif code:
            text = f"the server at {url} answered {status} {code}: {message}"
        else:
            text = f'option "url": what answers at {url} is not a topics server ({status}: {message})'
        return ServerRefused(text, status, code)


def find(plan: Callable[[str], Plan], topic: str) -> Plan | None:
    """The plan of a topic, or None where it does not exist."""
    try:
        return plan(topic)
    except ServerRefused as refused:
        if refused.code != TOPIC_NOT_FOUND:
            raise
        return None


def _path(topic: str) -> str:
    return f"/v0/topics/{quote(topic, safe='')}"


def _gap(tombstone: dict[str, Any]) -> Gap:
    return Gap(tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"])


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_FIRST_S
    while True:
        # Spread out, so that the tasks of one stage do not all come back at the same moment.
        yield pause_s * random.uniform(0.7, 1.3)  # noqa: S311
        pause_s = min(pause_s * 2, PAUSE_MAX_S)


def _reason(error: TopicsError) -> str:
    cause = error.__context__
    if isinstance(error, TimedOut):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause or error) or type(error).__name__
