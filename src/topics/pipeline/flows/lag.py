"""Lag: how far flows are from the heads of what they read, in records and in time.

The server is asked, because a query knows no lag while it is down or within a long batch. It costs a request for each
topic of a flow, or one for all topics with a prefix, and one for the time of the oldest record that is not done.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from topics.client.client import Client
from topics.client.record import Tombstone
from topics.commands.link import Target
from topics.errors import TopicNotFound, TopicsError
from topics.pipeline.flows.flows import Flow

TIMEOUT_S: Final = 3.0
TOPICS_MAX: Final = 200
"""A flow with more topics counts the lag of so many."""
TIMES_MAX: Final = 3
"""Of so many topics, those with the largest lag, the oldest record is looked for."""


class Lag(NamedTuple):
    """How late a flow is; None is not known."""

    records: int | None = None
    seconds: float | None = None


def client_of(server: Target) -> Client:
    """A client of a server, of several the first. It gives up soon: what it asks for is asked for again in a moment."""
    url, *others = (part.strip() for part in server.url.split(","))
    token = server.token.partition(",")[0].strip() if server.token is not None and others else server.token
    return Client(url, token=token, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S, retries=False)


class Lags:
    """Measures lags, with a client for each server and key."""

    def __init__(self) -> None:
        self._clients: dict[Target, Client] = {}

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def of(self, flow: Flow, cursors: dict[str, int] | None) -> Lag:
        """The lag of a flow that has got to these cursors. Raises nothing."""
        # Where several servers are read, each would have to be asked for each topic.
        if cursors is None or "," in flow.server.url:
            return Lag()
        try:
            client = self._clients.get(flow.server) or self._clients.setdefault(flow.server, client_of(flow.server))
            late = {
                # A head before the cursor is that of a topic that was created anew.
                topic: (head - cursors.get(topic, 0)) if cursors.get(topic, 0) <= head else head
                for topic, head in self._heads(client, flow).items()
            }
            most = sorted((topic for topic in late if late[topic]), key=late.__getitem__, reverse=True)[:TIMES_MAX]
            times = [_ts_after(client, topic, cursors.get(topic, 0)) for topic in most]
            oldest = min((ts for ts in times if ts is not None), default=None)
            seconds = 0.0 if oldest is None else round(max(0.0, time.time() - oldest / 1000), 1)
            return Lag(sum(late.values()), seconds)
        except TopicsError:
            return Lag()

    def _heads(self, client: Client, flow: Flow) -> dict[str, int]:
        if flow.prefix is not None:
            return {each.topic: each.head_seq for each in client.topics(flow.prefix, limit=TOPICS_MAX)}
        heads = {}
        for topic in flow.topics[:TOPICS_MAX]:
            try:
                heads[topic] = client.topic(topic).state().head_seq
            except TopicNotFound:
                continue
        return heads


def _ts_after(client: Client, topic: str, seq: int) -> int | None:
    """The time of the first record after a seq; None where there is none any more."""
    with client.topic(topic).read(from_seq=seq, limit=1, on_loss="yield") as reader:
        for item in reader:
            if not isinstance(item, Tombstone):
                return item.ts
    return None
