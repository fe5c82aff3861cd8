"""A persistent event engine with a JSON HTTP API: append-only topics, explicit loss, queues, live streams, Spark."""

__version__ = "0.1.0"
