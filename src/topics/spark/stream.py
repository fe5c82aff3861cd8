"""A stream over topics: the same rules as a batch, and offsets that Spark keeps in its checkpoint.

A query that runs once over everything there is (`availableNow`) ends where the topics ended when it started, however
many batches `maxOffsetsPerTrigger` makes of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from topics.spark import offsets, scan
from topics.spark.client import PLANNING_RETRY_MS, Gap, Plan
from topics.spark.errors import BadOption, SourceError, plainly
from topics.spark.limits import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from topics.spark.offsets import Cursor
from topics.spark.options import ReadOptions
from topics.spark.reader import RangePartition, deleted, names_of, read, recreated, resolve, unplanned, went_back
from topics.spark.scan import Range
from topics.spark.servers import Servers


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that follows its topics; new topics with the prefix join it."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._client: Servers | None = None
        self._target: dict[str, Cursor] | None = None
        self.through: Callable[[Range, Iterator[Any]], Iterator[Any]] | None = None
        """What a task makes of its records, where Spark is to get something else than them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connected(self) -> Servers:
        if self._client is None:
            self._client = Servers(self._options.addresses)
            self._client.assign_homes(self._options.starting.homes)
        return self._client

    def _render(self, cursors: dict[str, Cursor]) -> dict[str, Any]:
        """Offsets as Spark keeps them."""
        return offsets.render(cursors, self._connected().homes(list(cursors)))

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        options = self._options
        client = Servers(options.addresses, PLANNING_RETRY_MS)
        client.assign_homes(options.starting.homes)
        names = names_of(client, options)
        options.starting.check_names(names)
        cursors = {}
        for topic in names:
            if options.starting_ts is not None:
                plan = client.plan(topic, from_ts=options.starting_ts)
                cursors[topic] = Cursor(plan.epoch, plan.from_ts_seq)
            else:
                cursors[topic] = self._first(client.plan(topic), options.starting.of(topic))
        client.close()
        return offsets.render(cursors, client.homes(names))

    def _first(self, plan: Plan, wanted: str | Cursor) -> Cursor:
        """Where a topic starts. A place with an epoch is kept: what was lost since then is found as after a restart."""
        if isinstance(wanted, Cursor) and wanted.epoch is not None and not self._options.fail_on_data_loss:
            return wanted
        return resolve(plan, wanted, "startingOffsets", self._options.fail_on_data_loss)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember how far the topics reach now: a query that runs once ends there."""
        self._target = self._heads()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next batch reads."""
        options = self._options
        begun = self._checked(start)
        if options.pause_file is not None and Path(options.pause_file).exists():
            return self._render(begun)
        ends = {topic: self._head(topic, begun.get(topic)) for topic in self._names(begun)}
        limit_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._render(begun | _admitted(begun, ends, limit_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the topics reach now; the progress of a query shows it, and its lag."""
        client = self._connected()
        try:
            plans = [client.plan(topic) for topic in names_of(client, self._options, must_exist=False)]
        except SourceError:
            return None
        return self._render({plan.topic: Cursor(plan.epoch, plan.head_seq) for plan in plans})

    def _heads(self) -> dict[str, Cursor]:
        """How far the topics reach now."""
        client = self._connected()
        plans = map(client.find, names_of(client, self._options, must_exist=False))
        return {plan.topic: Cursor(plan.epoch, plan.head_seq) for plan in plans if plan is not None}

    def _names(self, begun: dict[str, Cursor]) -> list[str]:
        names = set(names_of(self._connected(), self._options, must_exist=False))
        return sorted((names if self._target is None else names & set(self._target)) | set(begun))

    def _checked(self, start: dict[str, Any]) -> dict[str, Cursor]:
        """The offsets of the checkpoint, which must be of the topics that are read."""
        topics = self._options.topics
        begun = offsets.parse(start)
        self._connected().assign_homes(offsets.homes_in(start))
        strangers = [topic for topic in begun if not topics.covers(topic)]
        if strangers:
            raise BadOption(
                topics.option,
                topics.value,
                f'the checkpoint holds offsets of topic "{strangers[0]}", which this option does not name; '
                f"it belongs to another query: give this one a checkpoint directory of its own",
            )
        return begun

    def _head(self, topic: str, begun: Cursor | None) -> Cursor | None:
        """How far a topic can be read now, or None where it is gone."""
        plan = self._connected().find(topic)
        if plan is None:
            if begun is not None and self._options.fail_on_data_loss:
                raise deleted(topic, begun)
            return None
        if self._target is not None and topic not in self._target:
            return begun
        target = None if self._target is None else self._target[topic]
        head = plan.head_seq
        if target is not None and target.epoch == plan.epoch:
            head = min(head, target.seq)
        if begun is not None and begun.epoch == plan.epoch and head < begun.seq:
            if plan.head_seq < begun.seq:
                scan.lost(topic, went_back(plan, begun), self._options.fail_on_data_loss)
                return Cursor(plan.epoch, head)
            return begun
        if begun is not None and begun.epoch != plan.epoch and self._options.fail_on_data_loss:
            raise recreated(topic, begun, plan)
        return Cursor(plan.epoch, head)

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The ranges of one batch, one task each."""
        client = self._connected()
        pieces: list[Range] = []
        plans: dict[str, Plan] = {}
        begun = self._checked(start)
        fail = self._options.fail_on_data_loss

        def lose(topic: str, epoch: int | None, gap: Gap) -> None:
            scan.lost(topic, gap, fail)
            pieces.append(Range(topic, epoch or 0, 0, 0, gap))

        client.assign_homes(offsets.homes_in(end))
        ends = offsets.parse(end)
        for topic in begun.keys() - ends.keys():
            if fail:
                raise deleted(topic, begun[topic])
        for topic, to in ends.items():
            since = begun.get(topic, Cursor(to.epoch, 0))
            if since == to:
                continue
            plan = client.find(topic)
            if plan is None:
                lose(topic, to.epoch, Gap(since.seq + 1, to.seq, "topic_deleted"))
                continue
            plans[topic] = plan
            if since.epoch != to.epoch:
                if fail:
                    raise recreated(topic, since, plan)
                pieces.append(Range(topic, to.epoch or 0, 0, 0, Gap(1, to.seq, "recreated")))
                since = Cursor(to.epoch, 0)
            if since.seq > plan.head_seq and since.epoch == plan.epoch:
                lose(topic, plan.epoch, went_back(plan, since))
                since = Cursor(plan.epoch, 0)
            if since.seq > to.seq:
                if fail:
                    raise unplanned(topic, since, to)
                continue
            if plan.epoch != to.epoch:
                lose(topic, to.epoch, Gap(since.seq + 1, to.seq, "recreated"))
                continue
            pieces += scan.ranges(client, plan, since.seq, to.seq, self._options)
        parts = scan.split(pieces, plans, self._options.partitions_min)
        return [RangePartition(piece) for piece in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range, or what is made of them."""
        rows = read(partition, self._options, self._schema)
        piece = partition.piece if isinstance(partition, RangePartition) else None
        return rows if self.through is None or piece is None else self.through(piece, rows)

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


class RefusedStreamReader(DataSourceStreamReader):
    """Takes the place of a stream that cannot start, and raises the reason when it is first used.

    Spark replaces what is raised while a stream reader is made by an error of its own.
    """

    def __init__(self, refusal: SourceError) -> None:
        self._refusal = refusal

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the reason."""
        raise self._refusal

    @plainly
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Raise the reason."""
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the reason."""
        raise self._refusal


def _admitted(begun: dict[str, Cursor], ends: dict[str, Cursor | None], limit: int | None) -> dict[str, Cursor]:
    """The ends of a batch of at most `limit` seqs, shared among the topics by how much each has waiting."""
    reachable = {topic: end for topic, end in ends.items() if end is not None}
    waiting = {}
    for topic, end in reachable.items():
        since = begun.get(topic)
        known = since is not None and since.epoch == end.epoch and since.seq <= end.seq
        waiting[topic] = end.seq - (since.seq if known and since is not None else 0)
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return reachable
    admitted = {}
    for topic, end in reachable.items():
        share = limit * waiting[topic] // total
        if waiting[topic] and not share and limit > 0:
            share = 1
        admitted[topic] = Cursor(end.epoch, end.seq - waiting[topic] + min(share, waiting[topic]))
    return admitted
