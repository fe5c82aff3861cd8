"""The two ways to write: a batch, and the epochs of a stream. Both stage and then publish, see `stage`.

The tasks of a stream learn from Spark's local properties which query and epoch they work for; the query's id is kept in
its checkpoint, so it is the same after a restart. A batch has its `txnId` instead, if the user gave one, and a
`txnVersion` that rises from one write to the next under the same id (the batch id, in `foreachBatch`). Without it a
batch is one attempt, and running it again writes its rows again.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from topics.spark.client import Client
from topics.spark.depot import depot_of
from topics.spark.errors import SourceError, plainly
from topics.spark.options import WriteOptions
from topics.spark.rows import Rows, check_columns
from topics.spark.stage import Stage, StagedFile


@dataclass
class Staged(WriterCommitMessage):
    """What a task reports to the driver: the producer and epoch that it staged records for, and where."""

    producer_id: str
    epoch: int
    file: StagedFile


class TopicsWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        check_columns(options, schema)
        self._options = options
        self._producer_id = f"spark-txn-{options.txn_id or uuid.uuid4().hex}"
        here = Path(tempfile.gettempdir()) / f"topics-staging-{os.getuid()}"
        place = here if options.staging is None else options.staging
        # Without a name nobody can take the write up again after a crash.
        self._root = depot_of("stagingDir", place, durable=options.txn_id is not None)

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage the rows of one task."""
        stage = self._stage()
        return staged(stage, () if stage.is_done() else iterator, self._options, _task().partitionId())

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged, or what the first attempt of the same `txnId` had staged."""
        stage = self._stage()
        if stage.is_done():
            return
        files = stage.decide(message.file for message in messages if isinstance(message, Staged))
        publish(stage, files, self._options)
        if self._options.txn_id is None:
            stage.forget()
        else:
            stage.forget_content()
            stage.forget_earlier()

    def _stage(self) -> Stage:
        return Stage(self._root, self._producer_id, self._options.txn_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything: Spark also aborts what was already published."""


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """The write of a stream, one epoch after the other."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        check_columns(options, schema)
        self._options = options
        if options.staging is not None:
            self._root = depot_of("stagingDir", options.staging)
        elif options.checkpoint is not None:
            self._root = depot_of("checkpointLocation", options.checkpoint).below("topics-staging")
        else:
            raise SourceError(
                'set the option "checkpointLocation" of this stream, or "stagingDir": its records are staged in a '
                "directory that outlives the query"
            )

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage the rows of one task."""
        context = _task()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        epoch = context.getLocalProperty("streaming.sql.batchId")
        if not query_id or epoch is None:
            raise SourceError("Spark does not report which query and batch this task works for")
        stage = Stage(self._root, f"spark-{query_id}", int(epoch))
        return staged(stage, iterator, self._options, context.partitionId())

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the epoch, from the first manifest that was written for it."""
        ours = [message for message in messages if isinstance(message, Staged)]
        if not ours:
            return
        assert {message.epoch for message in ours} == {batchId}, "the tasks of one batch name its epoch"
        stage = Stage(self._root, ours[0].producer_id, batchId)
        files = stage.decide(message.file for message in ours)
        publish(stage, files, self._options)
        stage.forget_earlier()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave everything: Spark also aborts what was already published."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def staged(stage: Stage, batches: Iterable[Any], options: WriteOptions, partition: int) -> Staged:
    """Stage the rows of one task."""
    rows = Rows(options, partition)
    file = stage.write((record for batch in batches for record in rows.render(batch)), partition)
    return Staged(stage.producer_id, stage.epoch, file)


def publish(stage: Stage, files: list[StagedFile], options: WriteOptions) -> None:
    """Publish the chosen files of an epoch."""
    client = Client(options.address)
    try:
        stage.publish(files, client, options.records_per_second)
    finally:
        client.close()
