"""Pipelines that a user runs: topics into a lake table, SQL over topics, and a lake table back into topics.

They are ordinary Structured Streaming queries over the source "topics", so they run unchanged on one machine and on a
cluster. They add how a batch is committed, a display of progress, and a stop between two batches.
"""
