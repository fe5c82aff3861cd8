"""A persistent event engine with a JSON HTTP API: append-only topics, explicit loss, queues, live streams, Spark.

The names of the Python library are here (docs/python.md). They are loaded when they are first used, so that a server
does not wait for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.async_consumer import AsyncConsumer
    from topics.client.async_producer import AsyncProducer
    from topics.client.async_topic import AsyncTopic
    from topics.client.async_worker import AsyncWorker
    from topics.client.client import Client
    from topics.client.consumer import Consumer
    from topics.client.errors import (
        BadAddress,
        BadAnswer,
        BadData,
        Closed,
        NotWritten,
        RecordsLost,
        TimedOut,
        Unreachable,
    )
    from topics.client.job import Job
    from topics.client.producer import Producer
    from topics.client.record import Draft, Record, Tombstone
    from topics.client.topic import Topic
    from topics.client.worker import Worker
    from topics.errors import TopicsError

__version__ = "0.1.0"

__all__ = [
    "AsyncClient", "AsyncConsumer", "AsyncProducer", "AsyncTopic", "AsyncWorker", "BadAddress", "BadAnswer",
    "BadData", "Client", "Closed", "Consumer", "Draft", "Job", "NotWritten", "Producer", "Record", "RecordsLost",
    "TimedOut", "Tombstone", "Topic", "TopicsError", "Unreachable", "Worker",
]  # fmt: skip

_HOMES = {
    "AsyncClient": "client.async_client",
    "AsyncConsumer": "client.async_consumer",
    "AsyncProducer": "client.async_producer",
    "AsyncTopic": "client.async_topic",
    "AsyncWorker": "client.async_worker",
    "BadAddress": "client.errors",
    "BadAnswer": "client.errors",
    "BadData": "client.errors",
    "Client": "client.client",
    "Closed": "client.errors",
    "Consumer": "client.consumer",
    "Draft": "client.record",
    "Job": "client.job",
    "NotWritten": "client.errors",
    "Producer": "client.producer",
    "Record": "client.record",
    "RecordsLost": "client.errors",
    "TimedOut": "client.errors",
    "Tombstone": "client.record",
    "Topic": "client.topic",
    "TopicsError": "errors",
    "Unreachable": "client.errors",
    "Worker": "client.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"topics.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
