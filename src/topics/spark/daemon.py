"""Daemon: the process that forks Spark's Python workers. It is Spark's own, but its workers end quietly (worker.py)."""

from __future__ import annotations

from pyspark import daemon

from topics.spark.worker import quiet

if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
