"""The operations on routers."""

from __future__ import annotations

from typing import Final

from topics.engine.router.router import PutRouter, RouterDeleted
from topics.errors import RouterCycle, RouterNotFound, TopicExistsIncompatible
from topics.server.api.shapes import RouterPage
from topics.server.openapi.operation import CHANGING, READING, Answer, Operation, Parameter
from topics.server.openapi.operations.topics import PAGE, PREFIX
from topics.server.openapi.shapes import RouterPutAnswer, RouterSeen

GROUP: Final = "Routers"
_RULE: Final = {
    "router": "orders->audit",
    "source": "orders",
    "dest": "audit",
    "preserve_node": True,
    "preserve_tag": True,
    "filter": ["tag", "Glob", "customer:*"],
    "allow_cycle": False,
    "guarantee": "at_least_once",
}
_TIMES: Final = {"server_total_ms": 0.087, "wal_append_ms": 0.014, "fsync_ms": 0.0}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("PUT", "/v0/routers/:router"): Operation(
        id="putRouter",
        group=GROUP,
        summary="Copy every record appended to `source` to `dest`",
        text="A destination has one source. Fields that are left out keep their value, or take the default.",
        body=PutRouter,
        example={"source": "orders", "dest": "audit", "filter": ["tag", "Glob", "customer:*"]},
        answers={
            200: (Answer("The router existed.", RouterPutAnswer),),
            201: (
                Answer("The router was created.", RouterPutAnswer, {**_RULE, "created": True, "performance": _TIMES}),
            ),
        },
        errors=(TopicExistsIncompatible, RouterCycle, *READING, *CHANGING),
    ),
    ("GET", "/v0/routers/:router"): Operation(
        id="getRouter",
        group=GROUP,
        summary="A router, and how many records it has forwarded",
        answers={
            200: (
                Answer(
                    "The router.",
                    RouterSeen,
                    {**_RULE, "forwarded_total": 0, "lag": 0, "performance": {"server_total_ms": 0.03}},
                ),
            )
        },
        errors=(RouterNotFound, *READING[1:]),
    ),
    ("GET", "/v0/routers"): Operation(
        id="listRouters",
        group=GROUP,
        summary="List routers by name",
        text="A key that is limited to prefixes sees only routers whose name, source and dest it may touch.",
        parameters=(
            PREFIX,
            Parameter("source", "Only routers from this topic.", {"type": "string"}),
            Parameter("dest", "Only routers to this topic.", {"type": "string"}),
            *PAGE,
        ),
        answers={
            200: (
                Answer(
                    "One page.",
                    RouterPage,
                    {
                        "routers": [
                            {
                                "router": "orders->audit",
                                "source": "orders",
                                "dest": "audit",
                                "guarantee": "at_least_once",
                                "forwarded_total": 0,
                                "lag": 0,
                                "filter": None,
                            }
                        ],
                        "performance": {"server_total_ms": 0.03},
                    },
                ),
            )
        },
    ),
    ("DELETE", "/v0/routers/:router"): Operation(
        id="deleteRouter",
        group=GROUP,
        summary="Stop forwarding",
        text="Copies that exist stay. A router that does not exist is no error.",
        answers={
            200: (
                Answer(
                    "The router is gone.",
                    RouterDeleted,
                    {"router": "orders->audit", "deleted": True, "performance": _TIMES},
                ),
            )
        },
        errors=(*READING[1:], *CHANGING),
    ),
}
