"""Router: one forwarding rule, "every record appended to `source` is also appended to `dest`" (ROUTER-1).

A router says which records are copied and what a copy looks like. The Forward makes the copies; all routers between the
same two topics share one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.engine.log.tags import TagMatch, parse_match
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.names import check_topic_name

Guarantee = Literal["at_least_once", "exactly_once"]
EXACTLY_ONCE = "exactly_once"


class PutRouter(Struct):
    """The body of `PUT /v0/routers/:router`. Fields that are left out keep their value, or take the default."""

    source: str
    dest: str
    preserve_node: bool | UnsetType = UNSET
    preserve_tag: bool | UnsetType = UNSET
    create_dest: bool = True
    filter: Any = UNSET
    allow_cycle: bool | UnsetType = UNSET
    guarantee: Guarantee | UnsetType = UNSET


class Rule(Struct, frozen=True):
    """What a router does to a record, in the order in which it is echoed."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Any = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class RouterState(Struct, frozen=True):
    """A router as `GET /v0/routers/:router` shows it."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: Any
    allow_cycle: bool
    guarantee: str
    forwarded_total: int
    lag: int
    """How many seqs of the source it has not looked at yet."""


class RouterSummary(Struct, frozen=True):
    """One line of the list of routers."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int
    lag: int
    filter: Any


class RouterPut(Struct, frozen=True):
    """A router was created or changed."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: Any
    allow_cycle: bool
    guarantee: str


class RouterDeleted(Struct, frozen=True):
    """A router was deleted, or was not there."""

    router: str
    deleted: bool


class Router:
    """One rule between two topics. `start_seq` is the source's head when it was made: it copies no history.

    Where a restart has brought the router back, `lsn` is that of the last frame that says what it is.
    """

    __slots__ = (
        "created_ts",
        "dest",
        "forwarded_total",
        "lsn",
        "match",
        "name",
        "plain",
        "rule",
        "source",
        "start_seq",
    )

    rule: Rule
    match: TagMatch | None
    plain: bool

    def __init__(
        self, name: str, source: Topic, dest: Topic, rule: Rule, start_seq: int, created_ts: int, lsn: int = 0
    ) -> None:
        self.name = name
        self.source = source
        self.dest = dest
        self.start_seq = start_seq
        self.created_ts = created_ts
        self.forwarded_total = 0
        self.lsn = lsn
        self.set(rule)

    def set(self, rule: Rule) -> None:
        """Copy by another rule from now on."""
        self.rule = rule
        self.match = None if rule.filter is None else parse_match(rule.filter, "filter")
        # Whether a copy is the record as it is, so that whole Blocks can be taken over.
        self.plain = self.match is None and rule.preserve_node and rule.preserve_tag and rule.guarantee != EXACTLY_ONCE


def rule_of(put: PutRouter, current: Rule, tag_bytes_max: int) -> Rule:
    """The rule after a PUT; raises InvalidRequest. A filter that is longer than any tag is none."""
    check_topic_name(put.source)
    check_topic_name(put.dest)
    if put.source == put.dest:
        raise InvalidRequest("dest must be another topic than source", field="dest", source=put.source)
    if put.filter is not UNSET and put.filter is not None:
        size = len(parse_match(put.filter, "filter").text)
        if size > tag_bytes_max:
            raise InvalidRequest(
                f"filter matches on {size} bytes, and a tag has at most {tag_bytes_max}",
                field="filter",
                limit="max_tag_bytes",
                max=tag_bytes_max,
            )
    named = {name: value for name in Rule.__struct_fields__ if (value := getattr(put, name)) is not UNSET}
    return msgspec.structs.replace(current, **named)
