"""Readers: plan a batch over what is there, and a stream that follows.

Every seq between two offsets becomes a row, was deleted, or is part of a gap, which stops the query or becomes one row
(`failOnDataLoss`, `includeTombstones`). Offsets carry the epoch, so a topic that was created anew is never read as the
old one.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from topics.spark import offsets, scan
from topics.spark.client import PLANNING_RETRY_MS, Client, Gap, Plan
from topics.spark.errors import BadOption, SourceError
from topics.spark.filters import Prune
from topics.spark.offsets import BEGINNING, EARLIEST, LATEST, Cursor
from topics.spark.scan import Range, RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from topics.spark.options import ReadOptions


class RangePartition(InputPartition):
    """One task's range of seqs; it knows neither address nor key."""

    def __init__(self, piece: Range | None) -> None:
        super().__init__(piece)
        self.piece = piece


class TopicsReader(DataSourceReader):
    """A read of what is there when the query is planned."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._prune = Prune()

    @property
    def pushFilters(self) -> _Push:  # noqa: N802 - Spark's name
        """What Spark calls with the filters of the query, where the session has push-down switched on.

        Where it is off, Spark refuses a reader that overrides `pushFilters`, which it checks by `__func__`; this looks
        as if nothing were overridden, so that one reader serves both kinds of session.

        Spark 4.3.0 keeps what a push-down planned on the relation, where the next query over the same DataFrame, or a
        second scan in the same query, finds it and reads too few rows. So filters are used only if the option
        `pushFilters` promises that the DataFrame serves one scan.
        """
        return _Push(self._prune if self._options.push_filters else Prune())

    def partitions(self) -> list[RangePartition]:
        """The ranges to read, one task each."""
        options, prune = self._options, self._prune
        client = Client(options.address, PLANNING_RETRY_MS)
        try:
            pieces: list[Range] = []
            plans: dict[str, Plan] = {}
            names = names_of(client, options)
            options.starting.check_names(names)
            options.ending.check_names(names)
            given = {"from_ts": options.starting_ts, "to_ts": options.ending_ts}
            times = {name: ts for name, ts in given.items() if ts is not None}
            for topic in names:
                if prune.wants(topic):
                    plan = plans[topic] = client.plan(topic, **times)
                    from_seq, to_seq = self._bounds(client, plan)
                    pieces += scan.ranges(client, plan, from_seq, to_seq, options)
        finally:
            client.close()
        parts = scan.split(pieces, plans, options.partitions_min)
        return [RangePartition(piece) for piece in parts] or [RangePartition(None)]

    def _bounds(self, client: Client, plan: Plan) -> tuple[int, int]:
        options, prune = self._options, self._prune
        start = resolve(plan, options.starting.of(plan.topic), "startingOffsets", options.fail_on_data_loss)
        end = resolve(plan, options.ending.of(plan.topic), "endingOffsets", options.fail_on_data_loss)
        if start.seq > end.seq and options.starting.is_named(plan.topic) and options.ending.is_named(plan.topic):
            place = f'{{"{plan.topic}": {end.seq}}}'
            raise BadOption("endingOffsets", place, f"it lies before startingOffsets, {start.seq}")
        from_seq = start.seq if options.starting_ts is None else plan.from_ts_seq
        to_seq = end.seq if options.ending_ts is None else plan.to_ts_seq
        if prune.ts_min is not None or prune.ts_max is not None:
            low, high = max(0, prune.ts_min or 0), prune.ts_max
            times = {"from_ts": low} if high is None else {"from_ts": low, "to_ts": max(0, high + 1)}
            timed = client.plan(plan.topic, **times)
            # A time before the first record that is left tells nothing about what was evicted: that stays a gap.
            from_seq = max(from_seq, timed.from_ts_seq) if prune.ts_min is not None else from_seq
            to_seq = min(to_seq, timed.to_ts_seq) if high is not None else to_seq
        to_seq = to_seq if prune.seq_max is None else min(to_seq, prune.seq_max)
        return max(from_seq, prune.seq_min - 1), to_seq

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read(partition, self._options, self._schema, self._prune)


class _Push:
    """`pushFilters` of a reader; see there."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, prune: Prune) -> None:
        self._prune = prune

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        for offered in filters:
            self._prune.push(offered)
        return filters


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that follows its topics; new topics with the prefix join it."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._client: Client | None = None
        self._target: dict[str, Cursor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._options.address)
        return self._client

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        options = self._options
        client = Client(options.address, PLANNING_RETRY_MS)
        names = names_of(client, options)
        options.starting.check_names(names)
        cursors = {}
        for topic in names:
            if options.starting_ts is not None:
                plan = client.plan(topic, from_ts=options.starting_ts)
                cursors[topic] = Cursor(plan.epoch, plan.from_ts_seq)
            else:
                wanted = options.starting.of(topic)
                cursors[topic] = resolve(client.plan(topic), wanted, "startingOffsets", options.fail_on_data_loss)
        client.close()
        return offsets.render(cursors)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember how far the topics reach now: a query that runs once ends there."""
        client = self._connected()
        plans = map(client.find, names_of(client, self._options, must_exist=False))
        self._target = {plan.topic: Cursor(plan.epoch, plan.head_seq) for plan in plans if plan is not None}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next batch reads."""
        options = self._options
        begun = self._checked(start)
        if options.pause_file is not None and Path(options.pause_file).exists():
            return offsets.render(begun)
        ends = {topic: self._head(topic, begun.get(topic)) for topic in self._names(begun)}
        limit_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.render(begun | _admitted(begun, ends, limit_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the topics reach now; the progress of a query shows it, and its lag."""
        client = self._connected()
        try:
            plans = [client.plan(topic) for topic in names_of(client, self._options, must_exist=False)]
        except SourceError:
            return None
        return offsets.render({plan.topic: Cursor(plan.epoch, plan.head_seq) for plan in plans})

    def _names(self, begun: dict[str, Cursor]) -> list[str]:
        names = set(names_of(self._connected(), self._options, must_exist=False))
        return sorted((names if self._target is None else names & set(self._target)) | set(begun))

    def _checked(self, start: dict[str, Any]) -> dict[str, Cursor]:
        """The offsets of the checkpoint, which must be of the topics that are read."""
        topics = self._options.topics
        begun = offsets.parse(start)
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
                raise SourceError(
                    f'topic "{topic}" was deleted after the query had read it to seq {begun.seq}; '
                    f'set the option "failOnDataLoss" to "false" to go on without it'
                )
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

        for topic, to in offsets.parse(end).items():
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
        parts = scan.split(pieces, plans, self._options.partitions_min, scan.STREAM_PARTITION_BYTES)
        return [RangePartition(piece) for piece in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read(partition, self._options, self._schema, Prune())

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


class RefusedStreamReader(DataSourceStreamReader):
    """Takes the place of a stream that cannot start, and raises the reason when it is first used.

    Spark 4.3.0 replaces what is raised while a stream reader is made by an error of its own.
    """

    def __init__(self, refusal: SourceError) -> None:
        self._refusal = refusal

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the reason."""
        raise self._refusal

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the reason."""
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the reason."""
        raise self._refusal


def read(partition: InputPartition, options: ReadOptions, schema: Any, prune: Prune) -> Iterator[Any]:
    """The records of one range, as Arrow record batches of the schema that Spark derives from its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert isinstance(partition, RangePartition)
    if partition.piece is None:
        return iter(())
    freeze_loaded()
    return RangeReader(options, to_arrow_schema(schema, timezone="UTC"), prune).read(partition.piece)


def freeze_loaded() -> None:
    """Leave what this process has loaded out of its garbage collections, from the first call on.

    A Spark worker collects garbage after every task, and the next task waits for that. With the modules that are loaded
    by then it takes 30 ms, about as long as decoding 300,000 records.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def names_of(client: Client, options: ReadOptions, must_exist: bool = True) -> list[str]:
    """The topics to read, in order."""
    topics = options.topics
    if topics.prefix is None:
        return topics.names
    names = sorted(client.topics(topics.prefix))
    if must_exist and not names:
        raise BadOption(topics.option, topics.value, f"no topic at {options.address.url} has this prefix")
    return names


def resolve(plan: Plan, wanted: str | Cursor, option: str, fail_on_data_loss: bool) -> Cursor:
    """The cursor that a user's offset means in this topic as it is now."""
    if wanted == BEGINNING:
        return Cursor(plan.epoch, 0)
    if wanted == EARLIEST:
        return Cursor(plan.epoch, plan.earliest_seq - 1)
    if wanted == LATEST:
        return Cursor(plan.epoch, plan.head_seq)
    assert isinstance(wanted, Cursor)
    if wanted.epoch not in (None, plan.epoch):
        if fail_on_data_loss:
            raise recreated(plan.topic, wanted, plan)
        return Cursor(plan.epoch, 0 if option == "startingOffsets" else plan.head_seq)
    if wanted.seq > plan.head_seq:
        if fail_on_data_loss:
            raise BadOption(
                option,
                f'{{"{plan.topic}": {wanted.seq}}}',
                f'it lies beyond the head of topic "{plan.topic}", which is {plan.head_seq}; the topic may have been '
                f'recreated. Set "failOnDataLoss" to "false" to read what is there',
            )
        return Cursor(plan.epoch, 0 if option == "startingOffsets" else plan.head_seq)
    return Cursor(plan.epoch, wanted.seq)


def went_back(plan: Plan, begun: Cursor) -> Gap:
    """The loss that shows in a head below what was read already: a crash took a tail that was not durable.

    The seqs after the head are given out again, and those up to it may have been too. As over the wire, a reader that
    goes on reads the topic from its beginning.
    """
    return Gap(plan.head_seq + 1, begun.seq, "head_went_back")


def recreated(topic: str, begun: Cursor, plan: Plan) -> SourceError:
    """The error for a topic that is not the one that was read before."""
    return SourceError(
        f'topic "{topic}" was deleted and recreated (epoch {begun.epoch} became {plan.epoch}) after it had been read '
        f"to seq {begun.seq}; what the old one held after that is lost (reason: recreated). Set the option "
        f'"failOnDataLoss" to "false" to go on with the new one from its beginning'
    )


def unplanned(topic: str, since: Cursor, to: Cursor) -> SourceError:
    """The error for a batch that ends before it starts.

    Spark keeps the end of a batch and not the start of the first one: after a crash it asks for that again, and
    "latest" is a later place by then.
    """
    return SourceError(
        f'the first batch of this stream was planned to seq {to.seq} of topic "{topic}" before a crash, and now '
        f'starts at {since.seq}, because "startingOffsets" is not a fixed place: what lies between is not known any '
        f'more. Start with a new checkpoint and startingOffsets such as {{"{topic}": 0}}, or set "failOnDataLoss" to '
        f'"false"'
    )


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
