"""Typed tables: the data of each topic taken apart into columns, out of the archive's events.

There is a Delta table for each topic, `typed/<topic>`, with the columns of the record and those that its JSON asks for
(see `shape`), and one table `errors` for the records that do not fit. Both are made from the commits of the table of
events, one after the other, so that they hold what the events hold, whenever they are made: an archive that becomes
typed later, or was not for a while, catches up.

Each table carries the version of the events that it was brought up to, as its app transaction, and a version that it
has is not added again. Within a version the errors are committed first and the typed tables after them, so that a
version is done when all its typed tables have it; a crash between two commits is completed by doing the same version
again. Columns are added in a commit of their own, before any file has them. A column of whole numbers that meets a
fraction becomes `double`: the table is written anew, in a commit that changes nothing else. A version that erased
records (see `erase`) erases them here too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.pipeline.errors import PipelineError
from topics.pipeline.lake import shape
from topics.pipeline.lake.contents import held
from topics.pipeline.lake.delta import add_files, delta_table, guarded, has_version, iso
from topics.pipeline.lake.files import (
    FILE_SCHEMA,
    WRITTEN_SCHEMA,
    Files,
    Written,
    by_date,
    columns_of,
    directory_of,
    report,
)
from topics.pipeline.lake.shape import Misfit, Shape
from topics.spark.archived import plain
from topics.spark.place import Place

APP_ID: Final = "topics-typed"
ERASED: Final = "topics.erased"
"""The key under which a commit of the events says what it erased."""
TRIES: Final = 20
PAUSE_S: Final = 0.2
RUN_NAMED_MAX: Final = 50
HERE_BYTES_MAX: Final = 8 << 20
EXACT_MAX: Final = 1 << 53
"""Up to here every whole number is a double too."""
RECORD_SCHEMA: Final = pa.schema([field for field in FILE_SCHEMA if field.name not in ("data", "epoch")])
ERROR_SCHEMA: Final = pa.schema(
    [("topic", pa.string()), *(FILE_SCHEMA.field(name) for name in ("seq", "ts"))]
    + [(name, pa.string()) for name in ("reason", "data")]
)
RAW_COLUMNS: Final = "seq bigint, ts timestamp, node string, tag string, meta map<string,string>, data string"
_TAKEN: Final = frozenset((*RECORD_SCHEMA.names, "topic", "date"))
_ERRORS: Final = "errors/"
_decode: Final = msgspec.json.Decoder().decode


class Erasure(NamedTuple):
    """Records of one epoch of a topic, all of which are to leave every table of the lake."""

    topic: str
    epoch: int
    runs: list[tuple[int, int]]
    """The seqs, both ends included."""
    ts_min: int
    ts_max: int
    """In microseconds. Epochs follow each other in time, so these tell them apart where a table has no epochs."""

    def to_json(self) -> str:
        """What the commit of the events carries."""
        return json.dumps(self)

    def delete(self, table: Any, where: str, metadata: dict[str, str] | None = None, version: int | None = None) -> int:
        """Erase the records from a table, in one commit; how many there were."""
        from deltalake import WriterProperties
        from deltalake.transaction import CommitProperties, Transaction

        transactions = None if version is None else [Transaction(APP_ID, version)]
        done = table.delete(
            f"{where}{self._condition()}",
            writer_properties=WriterProperties(compression="ZSTD", compression_level=3),
            commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=transactions),
        )
        return int(done["num_deleted_rows"])

    def _condition(self) -> str:
        named: list[str] = []
        terms: list[str] = []
        for first, last in self.runs:
            if last - first < RUN_NAMED_MAX:
                named += map(str, range(first, last + 1))
            else:
                terms.append(f"(seq >= {first} AND seq <= {last})")
        if named:
            terms.append(f"seq IN ({', '.join(named)})")
        low, high = self.runs[0][0], self.runs[-1][1]
        bounds = f"seq >= {low} AND seq <= {high} AND ts >= '{iso(self.ts_min)}' AND ts <= '{iso(self.ts_max)}'"
        return f"{bounds} AND ({' OR '.join(terms)})"


class Typed:
    """The typed tables beside one table of events."""

    def __init__(self, root: Place, file_bytes: int) -> None:
        self._root = root
        self._file_bytes = file_bytes
        self._events = root / "events"
        self._errors = delta_table(root / "errors", ERROR_SCHEMA, ())
        self._tables: dict[str, Any] = {}

    @staticmethod
    def place(topic: str) -> str:
        """The directory of a topic's table, below the root."""
        return f"typed/{directory_of(topic)}"

    def catch_up(self, session: Callable[[], Any]) -> int:
        """Bring the tables up to the events; how many records did not fit. `session` is used where there is much.

        Another process may do the same: where it was first, this one looks again, and finds its versions done.
        """
        from deltalake.exceptions import CommitFailedError

        for _ in range(TRIES - 1):
            try:
                return self._catch_up(session)
            except CommitFailedError:
                time.sleep(PAUSE_S)
        return self._catch_up(session)

    def _catch_up(self, session: Callable[[], Any]) -> int:
        from deltalake import DeltaTable

        for table in (self._errors, *self._tables.values()):
            table.update_incremental()
        events = DeltaTable(str(self._events))
        done = self._errors.transaction_version(APP_ID)
        if done is None:
            return self._project(session, events.version(), [(str(file.path), file.topic) for file in held(self._root)])
        # The newest version may lack some of its typed tables, where a crash came between two commits.
        misfits = 0
        for version in range(done, events.version() + 1):
            erased, added = _changes(self._events, version)
            if erased is None:
                misfits += self._project(session, version, added)
            else:
                self._erase(version, erased)
        return misfits

    def _erase(self, version: int, erased: Erasure) -> None:
        """Take over what a version of the events has erased."""
        if not has_version(self._errors, APP_ID, version):
            erased.delete(self._errors, f"topic = '{erased.topic}' AND ", version=version)
            self._errors.update_incremental()
        table = self._table(erased.topic)
        if table is not None and not has_version(table, APP_ID, version):
            erased.delete(table, "", version=version)
            table.update_incremental()

    def _project(self, session: Callable[[], Any], version: int, added: list[tuple[str, str]]) -> int:
        paths: dict[str, list[str]] = {}
        for path, topic in added:
            table = self._table(topic)
            if table is None or not has_version(table, APP_ID, version):
                paths.setdefault(topic, []).append(path)
        if not paths:
            return 0
        misfits: list[Written] = []
        fitted: dict[str, list[Written]] = {}
        for topic, found in sorted(paths.items()):
            wanted = Shape("struct")
            see = seer(self._columns(topic).to_json())
            for (seen,) in _run(session, self._events, found, see, "shape string"):
                wanted.take(shape.of_json(json.loads(seen)))
            columns = self._widen(topic, wanted)
            project = projector(topic, columns.to_json(), str(self._root), version, self._file_bytes)
            for file in (Written(*row) for row in _run(session, self._events, found, project, WRITTEN_SCHEMA)):
                assert file.path is not None
                (misfits if file.path.startswith(_ERRORS) else fitted.setdefault(topic, [])).append(file)
        if not has_version(self._errors, APP_ID, version):
            _commit(self._errors, version, [_within(_ERRORS, file) for file in misfits], ())
        for topic in sorted(paths):
            table = self._table(topic)
            assert table is not None
            place = f"typed/{directory_of(topic)}/"
            _commit(table, version, [_within(place, file) for file in fitted.get(topic, [])], ("date",))
        return sum(file.records for file in misfits)

    def _table(self, topic: str) -> Any:
        """The typed table of a topic, or None."""
        from deltalake import DeltaTable

        directory = self._root / self.place(topic)
        if topic not in self._tables and directory.is_table():
            self._tables[topic] = guarded(DeltaTable(str(directory)))
        return self._tables.get(topic)

    def _columns(self, topic: str) -> Shape:
        """The columns that a topic's table has for its data."""
        table = self._table(topic)
        if table is None:
            return Shape("struct")
        fields = pa.schema(table.schema().to_arrow())
        return shape.of_arrow(pa.struct([field for field in fields if field.name not in _TAKEN]))

    def _widen(self, topic: str, wanted: Shape) -> Shape:
        """The columns of a topic's table, after those that are wanted and not there were added."""
        from deltalake import Schema

        table = self._table(topic)
        if table is None:
            columns = Shape("struct")
            columns.widen(wanted)
            schema = pa.schema([*RECORD_SCHEMA, ("date", pa.date32()), *columns.arrow()])
            delta_table(self._root / self.place(topic), schema, ("date",))
            return columns
        known = pa.struct([field for field in pa.schema(table.schema().to_arrow()) if field.name not in _TAKEN])
        columns = shape.of_arrow(known)
        fractions = [name for name in columns.whole_beside_fractions(wanted) if _are_exact(table, name)]
        if fractions:
            _rewrite(table, fractions)
            known = pa.struct([pa.field(f.name, pa.float64()) if f.name in fractions else f for f in known])
            columns = shape.of_arrow(known)
        columns.widen(wanted)
        grown = [field for field in columns.arrow() if not _holds(known, field)]
        if grown:
            table.alter.add_columns(list(Schema.from_arrow(pa.schema(grown)).fields))
        return columns


def _are_exact(table: Any, column: str) -> bool:
    """Whether a column of whole numbers holds none that a fraction could not be equal to."""
    for batch in table.to_pyarrow_dataset().to_batches(columns=[column]):
        ends = pc.min_max(batch[column]).as_py()
        if any(end is not None and abs(end) > EXACT_MAX for end in ends.values()):
            return False
    return True


def _rewrite(table: Any, columns: list[str]) -> None:
    """Turn columns of whole numbers into columns of fractions, in one commit that replaces all files by such ones.

    It repeats the table's app transaction, so that it is refused where another process has changed the table meanwhile.
    """
    from deltalake import WriterProperties, write_deltalake
    from deltalake.transaction import CommitProperties, Transaction

    done = table.transaction_version(APP_ID)
    transactions = None if done is None else [Transaction(APP_ID, done)]
    stored = table.to_pyarrow_dataset()
    schema = pa.schema([pa.field(f.name, pa.float64()) if f.name in columns else f for f in stored.schema])
    batches = (batch.cast(schema) for batch in stored.to_batches())
    properties = WriterProperties(compression="ZSTD", compression_level=3)
    content = pa.RecordBatchReader.from_batches(schema, batches)
    write_deltalake(
        table,
        content,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["date"],
        writer_properties=properties,
        commit_properties=CommitProperties(app_transactions=transactions),
    )
    table.update_incremental()


def _run(
    session: Callable[[], Any],
    events: Place,
    paths: list[str],
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: str,
) -> list[tuple[Any, ...]]:
    """The rows that a function makes of files: here if they are small, since a job costs more, or by executors."""
    if sum(entry.size for entry in events.files().get_file_info(paths)) > HERE_BYTES_MAX:
        spark = session()
        tasks = spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths), "path")
        address = str(events)

        def work(named: Iterator[Any]) -> Iterator[Any]:
            given = [path for batch in named for path in batch["path"].to_pylist()]
            return function(_batches(address, given))

        return [tuple(row) for row in tasks.mapInArrow(work, schema).collect()]
    return [tuple(row.values()) for made in function(_batches(str(events), paths)) for row in made.to_pylist()]


def _batches(events: str, paths: list[str]) -> Iterator[Any]:
    files = Place(events).files()
    for path in paths:
        with files.open_input_file(path) as opened:
            yield from map(plain, pq.ParquetFile(opened).iter_batches())


def seer(known: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that `mapInArrow` runs to learn which columns the rows ask for, beyond those that are known.

    A row that does not fit the known ones becomes a row of the errors, and no column is added for it.
    """

    def see(batches: Iterator[Any]) -> Iterator[Any]:
        columns, seen = shape.of_json(known), Shape("struct")
        for batch in batches:
            for text in batch["data"].to_pylist():
                try:
                    members = _members(text)
                    columns.fit(members, grows=True)
                    seen.see(members)
                except Misfit:
                    continue
        yield pa.RecordBatch.from_pydict({"shape": [json.dumps(seen.to_json())]})

    return see


def projector(
    topic: str, wanted: Any, root: str, version: int, file_bytes: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that `mapInArrow` runs to write the rows of a topic into columns, and those that do not fit."""

    def project(batches: Iterator[Any]) -> Iterator[Any]:
        columns = shape.of_json(wanted)
        kinds = columns.arrow()
        typed = Files(root, pa.schema([*RECORD_SCHEMA, *kinds]), version, file_bytes)
        errors = Files(root, ERROR_SCHEMA, version, file_bytes)
        for batch in batches:
            rows, fitted, reasons = _sorted_out(columns, batch["data"].to_pylist())
            kept = columns_of(batch, RECORD_SCHEMA).take(pa.array(rows, pa.int64()))
            arrays = [pa.array([row.get(field.name) for row in fitted], field.type) for field in kinds]
            content = pa.RecordBatch.from_arrays([*kept.columns, *arrays], schema=pa.schema([*RECORD_SCHEMA, *kinds]))
            for date, part in by_date(content):
                typed.add(f"typed/{directory_of(topic)}/date={date}/", topic, date, part)
            if reasons:
                bad = batch.take(pa.array(list(reasons), pa.int64()))
                labels = [pa.array([topic] * bad.num_rows), bad["seq"], bad["ts"], pa.array(reasons.values())]
                errors.add(_ERRORS, topic, "", pa.RecordBatch.from_arrays([*labels, bad["data"]], schema=ERROR_SCHEMA))
        yield report([*typed.close(), *errors.close()])

    return project


def _sorted_out(columns: Shape, texts: list[str]) -> tuple[list[int], list[dict[str, Any]], dict[int, str]]:
    """The numbers of the rows that fit and their values, and the reason for each of the others."""
    rows: list[int] = []
    fitted: list[dict[str, Any]] = []
    reasons: dict[int, str] = {}
    for number, text in enumerate(texts):
        try:
            fitted.append(columns.fit(_members(text)))
            rows.append(number)
        except Misfit as misfit:
            reasons[number] = str(misfit)
    return rows, fitted, reasons


def _members(text: str) -> dict[str, Any]:
    """The members of the object in a record; those with the name of a record's column get another name."""
    try:
        value = _decode(text)
    except msgspec.DecodeError as error:
        raise Misfit(f"data does not parse: {error}") from None
    if not isinstance(value, dict):
        raise Misfit(f"data is not an object but {shape.shown(value)}")
    if _TAKEN.isdisjoint(key.lower() for key in value):
        return value
    return {f"data_{key}" if key.lower() in _TAKEN else key: member for key, member in value.items()}


def _holds(known: Any, field: Any) -> bool:
    at = known.get_field_index(field.name)
    return at >= 0 and bool(shape.of_arrow(known.field(at).type).to_json() == shape.of_arrow(field.type).to_json())


def _within(place: str, file: Written) -> Written:
    assert file.path is not None
    return file._replace(path=file.path.removeprefix(place))


def _commit(table: Any, version: int, files: list[Written], partition_by: Sequence[str]) -> None:
    add_files(table, files, partition_by, time.time_ns() // 1_000_000, {APP_ID: version})
    table.update_incremental()


def _changes(events: Place, version: int) -> tuple[Erasure | None, list[tuple[str, str]]]:
    """What a version of the events erased, or the files that it added and their topics; none if it only moved data."""
    try:
        log = events.read(f"_delta_log/{version:020d}.json")
        actions = [json.loads(line) for line in log.splitlines() if line]
    except FileNotFoundError:
        raise PipelineError(
            f"version {version} of {events} is no longer in its log, so that the typed tables cannot catch up; "
            "remove the tables typed and errors beside it to have them made again from all events"
        ) from None
    erased = next((action["commitInfo"][ERASED] for action in actions if ERASED in action.get("commitInfo", ())), None)
    if erased is not None:
        return Erasure(*json.loads(erased)), []
    return None, [
        (unquote(add["path"]), add["partitionValues"]["topic"])
        for add in (action.get("add") for action in actions)
        if add and add["dataChange"]
    ]
