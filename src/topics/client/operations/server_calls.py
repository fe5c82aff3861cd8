"""ServerCalls: what can be asked of a server as a whole, as operations for both kinds of client."""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict
from urllib.parse import urlencode

import msgspec

from topics.client.answers import ConsumerState, Health, Identity, Ready, RouterState, TopicSummary, decode
from topics.client.operations.call import Patience, call
from topics.client.operations.cursors import saved
from topics.client.operations.operation import Operation
from topics.client.operations.pipelines import PipelineState, reported
from topics.client.options import check_options
from topics.client.transport.answer import Answer
from topics.client.transport.request import Request, path
from topics.errors import TopicNotFound

PAGE_SIZE: Final = 1_000
_JSON: Final = b"Accept: application/json\r\n"


class RouterOptions(TypedDict, total=False):
    """The fields of a router (docs/api.md#routers). What is left out stays as it is."""

    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Any
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]


class _Topics(msgspec.Struct):
    topics: list[TopicSummary]
    next_cursor: str | None = None


class _Routers(msgspec.Struct):
    routers: list[RouterState]
    next_cursor: str | None = None


class _Head(msgspec.Struct):
    head_seq: int


class _Gone(msgspec.Struct):
    deleted: bool


class ServerCalls:
    """The calls of one server."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience

    def topics(self, prefix: str, limit: int | None) -> Operation[list[TopicSummary]]:
        """Every topic with the prefix, in order, or the first of them."""
        found: list[TopicSummary] = []
        cursor: str | None = ""
        while cursor is not None and (limit is None or len(found) < limit):
            page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(found))
            query = {"prefix": prefix, "page_size": str(page_size)} | ({"cursor": cursor} if cursor else {})
            answer = yield from self._get(b"/v0/topics?" + urlencode(query).encode())
            page = decode(answer, _Topics)
            found += page.topics
            cursor = page.next_cursor
        return found

    def routers(self, prefix: str, source: str | None, dest: str | None) -> Operation[list[RouterState]]:
        """Every router with the prefix, in order."""
        found: list[RouterState] = []
        cursor: str | None = ""
        given = {"prefix": prefix, "page_size": str(PAGE_SIZE), "source": source, "dest": dest}
        while cursor is not None:
            query = {**given, "cursor": cursor or None}
            text = urlencode({name: value for name, value in query.items() if value is not None})
            answer = yield from self._get(b"/v0/routers?" + text.encode())
            page = decode(answer, _Routers)
            found += page.routers
            cursor = page.next_cursor
        return found

    def router(self, name: str) -> Operation[RouterState]:
        """One router."""
        answer = yield from self._get(path("v0", "routers", name))
        return decode(answer, RouterState)

    def put_router(self, name: str, source: str, dest: str, options: RouterOptions) -> Operation[RouterState]:
        """Create a router, or change it."""
        check_options("put_router", options, RouterOptions)
        body = msgspec.json.encode({"source": source, "dest": dest, **options})
        answer = yield from call(Request(b"PUT", path("v0", "routers", name), body), self.patience)
        return decode(answer, RouterState)

    def delete_router(self, name: str) -> Operation[bool]:
        """Delete a router; whether there was one."""
        answer = yield from call(Request(b"DELETE", path("v0", "routers", name)), self.patience)
        return decode(answer, _Gone).deleted

    def health(self) -> Operation[Health]:
        """The server, if it is alive."""
        answer = yield from self._get(b"/v0/health")
        return decode(answer, Health)

    def ready(self) -> Operation[Ready]:
        """The server, if it serves."""
        answer = yield from self._get(b"/v0/ready")
        return decode(answer, Ready)

    def whoami(self) -> Operation[Identity]:
        """What the key of this client may do."""
        answer = yield from self._get(b"/v0/whoami")
        return decode(answer, Identity)

    def metrics(self) -> Operation[dict[str, Any]]:
        """The metrics of the server: a number for each name, or numbers by label."""
        answer = yield from call(Request(b"GET", b"/v0/metrics", fields=_JSON), self.patience)
        return decode(answer, dict[str, Any])

    def consumers(self, topic: str) -> Operation[list[ConsumerState]]:
        """Every consumer that keeps its cursors in a topic, by name."""
        found = yield from saved(topic, self.patience)
        heads: dict[str, int] = {}
        for name in {name for each in found for name in each.cursors}:
            try:
                answer = yield from self._get(path("v0", "topics", name) + b"?touch=false")
            except TopicNotFound:
                continue
            heads[name] = decode(answer, _Head).head_seq
        return [
            ConsumerState(
                each.consumer,
                each.committed_ts,
                {name: bookmark.seq for name, bookmark in each.cursors.items()},
                {name: max(0, heads[name] - bookmark.seq) for name, bookmark in each.cursors.items() if name in heads},
            )
            for each in sorted(found, key=lambda each: each.consumer)
        ]

    def pipelines(self, topic: str) -> Operation[list[PipelineState]]:
        """Every flow that reports into a topic, by name."""
        return reported(topic, self.patience)

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        deadline_s: float | None,
        retries: bool | None,
        repeatable: bool,
    ) -> Operation[bytes]:
        """The body of a success, whatever it is; with a patience of its own where one is given."""
        patience = self.patience
        if deadline_s is not None:
            patience = patience._replace(deadline_s=deadline_s)
        if retries is not None:
            patience = patience._replace(retries=retries)
        request = Request(method.encode(), target.encode(), body, repeatable=repeatable)
        answer = yield from call(request, patience)
        return answer.body

    def _get(self, target: bytes) -> Operation[Answer]:
        return call(Request(b"GET", target), self.patience)
