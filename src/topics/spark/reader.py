"""A batch over topics, planned over what is there, and what a stream shares with it.

Every seq between two offsets becomes a row, was deleted, or is part of a gap, which stops the query or becomes one row
(`failOnDataLoss`, `includeTombstones`). Offsets carry the epoch, so a topic that was created anew is never read as the
old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark import scan, version, worker
from topics.spark.client import PLANNING_RETRY_MS, Gap, Plan
from topics.spark.errors import BadOption, SourceError, plainly
from topics.spark.offsets import BEGINNING, EARLIEST, LATEST, Cursor
from topics.spark.scan import Range, RangeReader
from topics.spark.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    @plainly
    def partitions(self) -> list[RangePartition]:
        """The ranges to read, one task each."""
        options = self._options
        client = Servers(options.addresses, PLANNING_RETRY_MS)
        try:
            pieces: list[Range] = []
            plans: dict[str, Plan] = {}
            client.assign_homes(options.starting.homes | options.ending.homes)
            names = names_of(client, options)
            options.starting.check_names(names)
            options.ending.check_names(names)
            given = {"from_ts": options.starting_ts, "to_ts": options.ending_ts}
            times = {name: ts for name, ts in given.items() if ts is not None}
            for topic in names:
                plan = plans[topic] = client.plan(topic, **times)
                from_seq, to_seq = self._bounds(plan)
                pieces += scan.ranges(client, plan, from_seq, to_seq, options)
        finally:
            client.close()
        parts = scan.split(pieces, plans, options.partitions_min)
        worker.freeze_loaded()
        return [RangePartition(piece) for piece in parts] or [RangePartition(None)]

    def _bounds(self, plan: Plan) -> tuple[int, int]:
        options = self._options
        start = resolve(plan, options.starting.of(plan.topic), "startingOffsets", options.fail_on_data_loss)
        end = resolve(plan, options.ending.of(plan.topic), "endingOffsets", options.fail_on_data_loss)
        if start.seq > end.seq and options.starting.is_named(plan.topic) and options.ending.is_named(plan.topic):
            place = f'{{"{plan.topic}": {end.seq}}}'
            raise BadOption("endingOffsets", place, f"it is before startingOffsets, {start.seq}")
        from_seq = start.seq if options.starting_ts is None else plan.from_ts_seq
        to_seq = end.seq if options.ending_ts is None else plan.to_ts_seq
        return from_seq, to_seq

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range."""
        return read(partition, self._options, self._schema)


@plainly
def read(partition: InputPartition, options: ReadOptions, schema: Any) -> Iterator[Any]:
    """The records of one range, as Arrow record batches of the schema that Spark derives from its own."""
    assert isinstance(partition, RangePartition)
    if partition.piece is None:
        return iter(())
    worker.freeze_loaded()
    return _rows(RangeReader(options, arrow_schema(schema)), partition.piece)


def arrow_schema(schema: Any) -> Any:
    """The schema of Arrow that Spark derives from its own, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.1 takes no time zone: it is always UTC there.
    zone: dict[str, Any] = {} if version.running() == (4, 1) else {"timezone": "UTC"}
    return to_arrow_schema(schema, **zone)


@plainly
def _rows(reader: RangeReader, piece: Range) -> Iterator[Any]:
    yield from reader.read(piece)


def names_of(client: Servers, options: ReadOptions, must_exist: bool = True) -> list[str]:
    """The topics to read, in order."""
    topics = options.topics
    if topics.prefix is None:
        return topics.names
    names = client.topics(topics.prefix, topics.covers)
    if must_exist and not names:
        urls = ", ".join(address.url for address in options.addresses)
        fits = "has this prefix" if topics.option == "topicPrefix" else "has a name that matches it as a whole"
        raise BadOption(topics.option, topics.value, f"no topic at {urls} {fits}")
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
                f'it is beyond the head of topic "{plan.topic}", which is {plan.head_seq}; the topic may have been '
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


def deleted(topic: str, begun: Cursor) -> SourceError:
    """The error for a topic that is gone."""
    return SourceError(
        f'topic "{topic}" was deleted after the query had read it to seq {begun.seq}; '
        f'set the option "failOnDataLoss" to "false" to go on without it'
    )


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
        f'starts at {since.seq}, because "startingOffsets" is not a fixed place: what is between is not known any '
        f'more. Start with a new checkpoint and startingOffsets such as {{"{topic}": 0}}, or set "failOnDataLoss" to '
        f'"false"'
    )
