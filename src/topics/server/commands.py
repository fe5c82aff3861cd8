"""The commands that a client sends over a WebSocket, as structs (API §7.7)."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from topics.engine import requests
from topics.errors import InvalidRequest
from topics.server import bodies
from topics.server.watch import Options, TopicWatch

RequestId = str | int | None


class Subscribe(Options, tag_field="op", tag="subscribe", kw_only=True):
    """Follow a topic, or several."""

    request_id: RequestId = None
    topic: str | None = None
    topics: dict[str, TopicWatch] | None = None
    from_seq: requests.U64 = 0
    tail: bool = False
    from_ts: int | None = None
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
    """Follow a topic, or several, no longer."""

    request_id: RequestId = None
    topic: str | None = None
    topics: list[str] | None = None


class Publish(requests.Write, tag_field="op", tag="publish", kw_only=True):
    """Append records: the body of a write, with the topic in it."""

    topic: str
    request_id: RequestId = None
    return_seqs: bool = True


class Ping(Struct, tag_field="op", tag="ping", kw_only=True):
    """Ask for a pong."""

    request_id: RequestId = None


Command = Subscribe | Unsubscribe | Publish | Ping


class _Envelope(Struct):
    request_id: RequestId = None


_union: Final = msgspec.json.Decoder(Command)
_envelope: Final = msgspec.json.Decoder(_Envelope)


def decode(text: bytes) -> Command:
    """The command in a message; raises InvalidRequest."""
    try:
        return cast("Command", _union.decode(text))
    except msgspec.ValidationError as error:
        raise bodies.described(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the message is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the message is nested too deeply") from None


def request_id_of(text: bytes) -> RequestId:
    """The `request_id` of a message that is no command, so that its error can still be matched to it."""
    try:
        return _envelope.decode(text).request_id
    except (msgspec.MsgspecError, RecursionError):
        return None
