"""The commands that a client sends over a WebSocket, as structs (the WS rules).

A command is checked like the body of the corresponding request (bodies.py): the same bounds on numbers, and no field
given twice.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from topics.engine import requests
from topics.errors import InvalidRequest
from topics.server.api import bodies
from topics.server.api.records import WriteBody
from topics.server.api.repeats import first_fields
from topics.server.delivery.subscription import TopicWatch, check_count, check_numbers
from topics.server.delivery.view import WatchOptions
from topics.server.http.body import WHOLE_MAX_BYTES, BodyLimit

RequestId = str | int | None

_BEGINNING_BYTES: Final = 4096


class Subscribe(WatchOptions, tag_field="op", tag="subscribe", kw_only=True):
    """Follow a topic, or several."""

    request_id: RequestId = None
    topic: str | None = None
    topics: dict[str, TopicWatch] | None = None
    from_seq: requests.U64 = 0
    tail: bool = False
    from_ts: requests.U64 | None = None
    match: Any = None

    def named(self) -> dict[str, TopicWatch]:
        """The topics to follow, each with where to begin."""
        if (self.topic is None) == (self.topics is None):
            raise InvalidRequest("subscribe takes either topic or topics", field="topic")
        if self.topics is not None:
            return self.topics
        assert self.topic is not None
        return {self.topic: TopicWatch(self.from_seq, self.tail, self.from_ts, self.match)}


class Unsubscribe(Struct, tag_field="op", tag="unsubscribe", kw_only=True):
    """Stop following a topic, or several."""

    request_id: RequestId = None
    topic: str | None = None
    topics: list[str] | None = None


class Publish(requests.Write, tag_field="op", tag="publish", kw_only=True):
    """Append records: the body of a write, with the topic in it."""

    topic: str
    request_id: RequestId = None
    return_seqs: bool = True


class StrictPublish(Publish, tag_field="op", tag="publish", kw_only=True, forbid_unknown_fields=True):
    """A publish without unknown fields."""

    records: list[bodies.StrictRecord]  # type: ignore[assignment]
    config: bodies.StrictPatch | None = None


class Ping(Struct, tag_field="op", tag="ping", kw_only=True):
    """Ask for a pong."""

    request_id: RequestId = None


Command = Subscribe | Unsubscribe | Publish | Ping


class _Envelope(Struct):
    request_id: RequestId = None


class _SubscribeCheck(bodies.Body[Subscribe]):
    __slots__ = ()

    def check_range(self, decoded: Subscribe, within: str = "") -> None:
        super().check_range(decoded, within)
        check_numbers(decoded.topics or {})

    def _may_repeat(self, body: bytes, decoded: Subscribe) -> bool:
        return decoded.topics is not None or super()._may_repeat(body, decoded)


publish: Final = WriteBody(StrictPublish, Publish)
_checks: Final[dict[type, Any]] = {
    Subscribe: _SubscribeCheck(Subscribe),
    Unsubscribe: bodies.Body(Unsubscribe),
    Publish: publish,
    StrictPublish: publish,
    Ping: bodies.Body(Ping),
}
_strict: Final = msgspec.json.Decoder(Subscribe | Unsubscribe | StrictPublish | Ping)
_loose: Final = msgspec.json.Decoder(Command)
_envelope: Final = msgspec.json.Decoder(_Envelope)


def decode(text: bytes, topics_max: int = bodies.COMMAND_VALUES_MAX) -> Command:
    """The command in a message that is handled at once; raises InvalidRequest."""
    if b'"records"' not in text:
        bodies.check_values(text)
    try:
        command = _decode(text)
    except msgspec.ValidationError as error:
        # Not by a name of this frame: the error knows the frame, and together they would wait for the collector.
        raise _described(str(error)) from None
    except msgspec.DecodeError as error:
        raise bodies.malformed(text, str(error), "the message") from None
    except RecursionError:
        raise InvalidRequest(f"the message {bodies.TOO_DEEP}") from None
    if isinstance(command, (Subscribe, Unsubscribe)) and command.topics is not None:
        check_count(command.topics, topics_max)
    _checks[type(command)].check(text, command)
    return command


def _described(problem: str) -> InvalidRequest:
    described = bodies.described(problem, "the message")
    if described.detail.get("field") == "op":
        return InvalidRequest("op must be subscribe, unsubscribe, publish or ping", field="op")
    return described


def _decode(text: bytes) -> Command:
    try:
        return cast("Command", _strict.decode(text))
    except msgspec.ValidationError:
        return cast("Command", _loose.decode(text))


def is_large_publish(text: bytes) -> bool:
    """Whether a message is to be taken as a large write: it has records, unless it is no command at all."""
    return len(text) > WHOLE_MAX_BYTES and b'"records"' in text


def publish_envelope(text: bytes) -> tuple[Publish, list[str]]:
    """What surrounds the records of a large publish, and its unknown fields; raises InvalidRequest."""
    bodies.check_values(text)
    command = decode(text)
    if not isinstance(command, Publish):
        raise InvalidRequest("a command with records must be a publish", field="op")
    return command, publish.unknown(text) if type(command) is Publish else []


def check_size(text: bytes, max_bytes: int) -> None:
    """Raise PayloadTooLarge where a command that publishes nothing is too large."""
    if len(text) > max_bytes:
        raise BodyLimit("max_command_bytes", max_bytes).exceeded(len(text))


def request_id_of(text: bytes) -> RequestId:
    """The `request_id` of a message that is no command, so that its error can still be matched to it.

    In a large message it is found only near the beginning.
    """
    if len(text) > WHOLE_MAX_BYTES:
        text = b'{"request_id":%b}' % first_fields(text[:_BEGINNING_BYTES]).get("request_id", b"null")
    try:
        return _envelope.decode(text).request_id
    except (msgspec.MsgspecError, RecursionError):
        return None
