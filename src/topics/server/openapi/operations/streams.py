"""The operations that deliver records as they come."""

from __future__ import annotations

from typing import Final

from topics.errors import NotAcceptable, NotFound, TopicNotFound
from topics.server.delivery.commands import Ping, Publish, Subscribe, Unsubscribe
from topics.server.delivery.watch import WatchCreated, WatchRequest
from topics.server.openapi import shapes
from topics.server.openapi.operation import EVENTS, READING, Answer, Operation, Parameter, flag

GROUP: Final = "Streams"

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v0/watch"): Operation(
        id="watch",
        group=GROUP,
        summary="Create a watch session over many topics",
        text="The session remembers how far its stream got, so that opening `stream_url` again resumes there.",
        body=WatchRequest,
        example={"topics": {"orders": {"from_seq": 0}}},
        parameters=(Parameter("lenient", "True: skip topics that do not exist, instead of a 404.", flag(False)),),
        answers={
            200: (
                Answer(
                    "The session.",
                    WatchCreated,
                    {
                        "wid": "wid_8Yv3nZk2QmG1cTf0LxWb7A",
                        "stream_url": "/v0/watch/wid_8Yv3nZk2QmG1cTf0LxWb7A",
                        "session_ttl_ms": 300_000,
                        "topics": {"orders": {"from_seq": 0, "head_seq": 1, "earliest_seq": 1}},
                        "performance": {"server_total_ms": 0.05},
                    },
                ),
            )
        },
        errors=(TopicNotFound, *READING[1:]),
    ),
    ("GET", "/v0/watch/:wid"): Operation(
        id="openWatch",
        group=GROUP,
        summary="Stream a session as server-sent events",
        text="Needs the key that created the session. A session has one stream at a time, and the newest request has "
        "it.",
        parameters=(
            Parameter(
                "Last-Event-ID",
                "The last `id` that the client has seen; it can only move the stream back.",
                {"type": "string"},
                place="header",
            ),
        ),
        answers={200: (Answer("A stream of events.", content_type=EVENTS, schema={"type": "string"}),)},
        errors=(NotFound, NotAcceptable),
        events={
            "record": shapes.RecordEvent,
            "tombstone": shapes.TombstoneEvent,
            "caught-up": shapes.CaughtUpEvent,
            "topic-deleted": shapes.TopicDeletedEvent,
            "error": shapes.ErrorEvent,
        },
    ),
    ("GET", "/v0/ws"): Operation(
        id="websocket",
        group=GROUP,
        summary="A WebSocket to subscribe and publish",
        text="Messages are JSON objects of at most 8 MiB. `subscribe` needs the scope `read`, `publish` needs `write`, "
        "and with `config` also `admin`. A page, which cannot set headers, sends its key as the subprotocol "
        "`topics.bearer.<key in base64url>` next to `topics`.",
        answers={101: (Answer("The connection is a WebSocket.", content_type=""),)},
        sends=(Subscribe, Unsubscribe, Publish, Ping),
        receives=(
            shapes.Subscribed,
            shapes.Unsubscribed,
            shapes.Ack,
            shapes.Pong,
            shapes.ErrorMessage,
            shapes.RecordMessage,
            shapes.TombstoneMessage,
            shapes.CaughtUpMessage,
            shapes.TopicDeletedMessage,
        ),
    ),
}
