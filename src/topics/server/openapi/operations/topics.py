"""The operations on topics."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict

from topics.engine.config import DEFAULTS, ConfigPatch
from topics.engine.state import DeletedTopic, TopicState
from topics.errors import TopicExistsIncompatible, TopicNotEmpty
from topics.server.api.shapes import TopicPage
from topics.server.http.query import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from topics.server.openapi.operation import CHANGING, READING, Answer, Operation, Parameter, flag, whole
from topics.server.openapi.shapes import TopicPut

GROUP: Final = "Topics"

PREFIX: Final = Parameter("prefix", "Only names that begin with this.", {"type": "string"})
PAGE: Final = (
    Parameter(
        "page_size",
        f"How many at a time, at most {PAGE_SIZE_MAX}.",
        whole(least=1, default=PAGE_SIZE_DEFAULT),
    ),
    Parameter("cursor", "The `next_cursor` of the page before.", {"type": "string", "contentEncoding": "base64"}),
)

_CONFIG: Final[dict[str, Any]] = {**asdict(DEFAULTS), "ttl_ms": 86_400_000}
_TIMES: Final = {"server_total_ms": 0.061, "wal_append_ms": 0.012, "fsync_ms": 0.0}
_TOPIC: Final = {
    "topic": "orders",
    "head_seq": 3,
    "earliest_seq": 1,
    "count": 3,
    "bytes": 189,
    "effective_priority": 0,
}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("PUT", "/v0/topics/:topic"): Operation(
        id="putTopic",
        group=GROUP,
        summary="Create a topic, or change its config",
        text="Only the fields that the body names are changed.",
        body=ConfigPatch,
        body_required=False,
        example={"ttl_ms": 86_400_000},
        answers={
            200: (Answer("The topic existed.", TopicPut),),
            201: (
                Answer(
                    "The topic was created.",
                    TopicPut,
                    {"topic": "orders", "created": True, "config": _CONFIG, "performance": _TIMES},
                ),
            ),
        },
        errors=(TopicExistsIncompatible, *CHANGING),
    ),
    ("GET", "/v0/topics/:topic"): Operation(
        id="getTopic",
        group=GROUP,
        summary="The state of a topic",
        parameters=(Parameter("touch", "False: this look does not affect the topic's priority.", flag(True)),),
        answers={
            200: (
                Answer(
                    "The state.",
                    TopicState,
                    {
                        **_TOPIC,
                        "type": "log",
                        "next_seq": 4,
                        "config": _CONFIG,
                        "last_write_ts": 1767225600000,
                        "last_read_ts": None,
                        "erased_before_ts": 1767225600000,
                        "performance": {"server_total_ms": 0.033},
                    },
                ),
            )
        },
        errors=READING,
    ),
    ("GET", "/v0/topics"): Operation(
        id="listTopics",
        group=GROUP,
        summary="List topics by name",
        text="A key that is limited to prefixes sees its own topics only.",
        parameters=(
            PREFIX,
            *PAGE,
            Parameter("touch", "True: this look counts as a read of every topic it shows.", flag(False)),
        ),
        answers={
            200: (
                Answer(
                    "One page.",
                    TopicPage,
                    {
                        "topics": [{**_TOPIC, "durable": False, "type": "log"}],
                        "performance": {"server_total_ms": 0.028},
                    },
                ),
            )
        },
        errors=READING[1:],
    ),
    ("DELETE", "/v0/topics/:topic"): Operation(
        id="deleteTopic",
        group=GROUP,
        summary="Delete a topic with its records and routers",
        text="A topic that does not exist is no error.",
        parameters=(Parameter("if_empty", "True: only if it holds no records, otherwise a 409.", flag(False)),),
        answers={
            200: (
                Answer(
                    "The topic is gone.",
                    DeletedTopic,
                    {"topic": "orders", "deleted": True, "routers_removed": [], "performance": _TIMES},
                ),
            )
        },
        errors=(TopicNotEmpty, *READING[1:], *CHANGING),
    ),
}
