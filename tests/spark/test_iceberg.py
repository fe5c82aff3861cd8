"""Archives as Iceberg tables: every record once through kills and restarts, and readable by others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.harness.api import Api
from tests.harness.object_store import BUCKET, SECRET, ObjectStore, object_store, use
from tests.harness.spark import Archives
from topics.pipeline.archive import Archive
from topics.pipeline.errors import PipelineError
from topics.pipeline.lake import iceberg
from topics.pipeline.lake.delta import DeltaLake
from topics.pipeline.lake.files import NAMED_SCHEMA, Files, Written
from topics.pipeline.lake.iceberg import IcebergLake, open_catalog
from topics.spark import archived
from topics.spark.errors import SourceError
from topics.spark.place import Place
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

DOC = Path(__file__).parents[2] / "docs" / "spark.md"

# An archive in a process of its own. With "killed" it dies in its second batch, whose files are written, before it
# commits them.
RUN = """
import os, signal, sys
from pathlib import Path
from topics.pipeline.archive import Archive
from topics.pipeline.lake.iceberg import IcebergLake
from topics.spark import session
from topics.spark.place import Place

url, topic, lake, catalog, pause, how = sys.argv[1:]
commit = IcebergLake.commit

def killed(self, app_id, batch_id, *rest):
    if batch_id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, app_id, batch_id, *rest)

if how == "killed":
    IcebergLake.commit = killed
spark = session(master="local[2]", config={"spark.ui.enabled": "false"}, quiet=False)
spark.sparkContext.setLogLevel("INFO")
archive = Archive({"url": url, "topics": topic}, Place(lake), "iceberg", offsets_max=60, catalog=catalog)
query = archive.start(spark, True, "1 second", Path(pause))
query.awaitTermination()
assert query.exception() is None, query.exception()
"""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def events(root: Place, catalog: str | None = None, name: str = "events") -> Any:
    """A table as its catalog has it now."""
    return open_catalog(root, catalog).load_table(f"topics.{name}")


def seqs(root: Place, catalog: str | None = None) -> list[tuple[str, int]]:
    rows = events(root, catalog).scan().to_arrow().to_pylist()
    return sorted((row["topic"], row["seq"]) for row in rows)


def test_an_iceberg_archive_holds_every_record_once_and_others_read_it(
    archives: Archives, api: Api, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-16: over a replayed batch and a lost checkpoint; Polars and DuckDB find what the server had."""
    import duckdb
    import polars

    orders, clicks = f"{topic_name}:orders", f"{topic_name}.clicks"
    api.write(orders, *({"data": {"n": n}, "tag": "t", "meta": {"k": "v"}} for n in range(1, 6)))
    api.put(clicks, cap_records=2)
    api.fill(clicks, 6)
    archive = archives.run(format="iceberg", offsets_max=6)
    assert archive.progress.records == 7
    for left in (archives.root / "_checkpoint" / "commits").glob("*0*"):
        left.unlink()
    api.fill(orders, 1)
    archives.run(format="iceberg")
    api.fill(orders, 1)
    archives.run(format="iceberg", checkpoint=tmp_path / "another")
    expected = [*((clicks, seq) for seq in (5, 6)), *((orders, seq) for seq in range(1, 8))]
    assert seqs(archives.place) == expected
    losses = events(archives.place, name="losses").scan().to_arrow().to_pylist()
    assert sorted(seq for row in losses for seq in range(row["gap_from"], row["gap_to"] + 1)) == [1, 2, 3, 4]
    assert {(row["topic"], row["reason"]) for row in losses} == {(clicks, "cap")}

    monkeypatch.chdir(archives.root.parent)
    page = DOC.read_text(encoding="utf-8").partition("\n### Iceberg\n")[2]
    shown: dict[str, Any] = {}
    exec(compile(page.partition("```python\n")[2].partition("```")[0], str(DOC), "exec"), shown)
    found = shown["events"]
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    scanned = polars.scan_iceberg(found).select("topic", "seq", "data", "meta").collect()
    assert sorted(scanned.select("topic", "seq").rows()) == expected
    assert '{"n": 3}' in scanned["data"].to_list()
    paths = [task.file.file_path for task in found.scan(row_filter=f"topic = '{orders}'").plan_files()]
    read = duckdb.read_parquet(paths).query("rows", "SELECT topic, seq, meta['k'] FROM rows ORDER BY seq")
    assert read.fetchall() == [(orders, seq, "v" if seq < 6 else None) for seq in range(1, 8)]


def test_an_archive_that_is_killed_before_its_commit_goes_on_from_its_table(
    store: ObjectStore,
    server: ServerProcess,
    api: Api,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIPELINE-16: in an object store and without a checkpoint, so only the table can say where to go on."""
    lake, catalog = f"s3://{BUCKET}/{topic_name}", f"sqlite:///{tmp_path}/catalog.db"
    api.fill(topic_name, 100)

    def run(how: str) -> subprocess.CompletedProcess[str]:
        given = (server.url, topic_name, lake, catalog, str(tmp_path / "pause"), how)
        environment = {**os.environ, **store.environment}
        return subprocess.run(
            [sys.executable, "-c", RUN, *given],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    killed = run("killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    use(store, monkeypatch)
    place = Place(lake)
    assert seqs(place, catalog) == [(topic_name, seq) for seq in range(1, 61)]
    before = len(list(events(place, catalog).scan().plan_files()))
    assert files_in(place) > before, "those of the batch that was not committed are there, and not in the table"
    again = run("whole")
    assert again.returncode == 0, again.stderr[-3000:]
    assert SECRET not in killed.stderr + again.stdout + again.stderr
    assert seqs(place, catalog) == [(topic_name, seq) for seq in range(1, 101)]


def files_in(place: Place) -> int:
    from pyarrow import fs

    found = (place / "events/data").files().get_file_info(fs.FileSelector("", recursive=True))
    return sum(entry.path.endswith(".parquet") for entry in found)


def add(lake: IcebergLake | DeltaLake, first: int, last: int, topic: str = "t") -> list[Written]:
    """Files with these seqs, not committed."""
    count = last - first + 1
    times = pa.array([seq * 1000 for seq in range(first, last + 1)], pa.timestamp("us", "UTC"))
    columns = {"seq": pa.array(range(first, last + 1), pa.int64()), "ts": times}
    columns |= {"topic": pa.repeat(pa.scalar(topic), count), "epoch": pa.repeat(pa.scalar(7), count)}
    columns["data"] = pa.repeat(pa.scalar('"private-text"'), count)
    arrays = [columns.get(field.name, pa.nulls(count, field.type)).cast(field.type) for field in NAMED_SCHEMA]
    files = Files(str(lake.root), NAMED_SCHEMA, 0, 1 << 20)
    rows = pa.RecordBatch.from_arrays(arrays, schema=NAMED_SCHEMA)
    files.add(f"{lake.prefix}topic={topic}/date=1970-01-01/", topic, "1970-01-01", rows)
    return files.close()


def at(seq: int) -> dict[str, Any]:
    return {"t": {"epoch": 7, "seq": seq}}


def overtake(monkeypatch: pytest.MonkeyPatch, other: Any) -> list[Any]:
    """Have `other` commit after a commit has looked where the table is, once."""
    look = iceberg.check_begun
    looked: list[Any] = []

    def overtaken(*arguments: Any) -> None:
        look(*arguments)
        if not looked:
            looked.append(arguments)
            other()

    monkeypatch.setattr(iceberg, "check_begun", overtaken)
    return looked


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_of_two_iceberg_archives_of_a_topic_the_first_writer_wins(
    kind: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-16: both have looked, and then both commit; the second is refused and its files are never seen."""
    use(store, monkeypatch)
    place = Place(f"s3://{BUCKET}/iceberg-race" if kind == "s3" else tmp_path / "race")
    catalog = f"sqlite:///{tmp_path}/race.db"

    def lake() -> IcebergLake:
        return IcebergLake(place, catalog)

    first, second = lake(), lake()
    first.commit("before", 0, add(first, 1, 3), at(3), {})
    looked = overtake(monkeypatch, lambda: first.commit("one", 0, add(first, 4, 5), at(5), at(3)))
    with pytest.raises(PipelineError, match=r'another archive has brought topic "t" .* to seq 5 .* went on from seq 3'):
        second.commit("two", 0, add(second, 4, 6), at(6), at(3))
    assert looked
    assert seqs(place, catalog) == [("t", seq) for seq in range(1, 6)]
    assert (second.has("one", 0), second.has("two", 0)) == (True, False)


def test_iceberg_archives_of_different_topics_share_a_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-16: a commit that was overtaken by one of other topics is made again, and the place of each is kept."""
    place = Place(tmp_path)
    first, second = IcebergLake(place), IcebergLake(place)
    looked = overtake(
        monkeypatch, lambda: first.commit("one", 0, add(first, 8, 9, "a"), {"a": {"epoch": 1, "seq": 9}}, {})
    )
    second.commit("two", 0, add(second, 1, 2), at(2), {})
    assert looked
    assert IcebergLake(place).offsets() == {"a": {"epoch": 1, "seq": 9}, **at(2)}
    assert seqs(place) == [("a", 8), ("a", 9), ("t", 1), ("t", 2)]
    for file in (tmp_path / "events" / "metadata").iterdir():
        assert b"private-text" not in file.read_bytes(), "the log of the table holds no text of records"


def test_the_place_of_an_archive_outlives_its_snapshots(tmp_path: Path) -> None:
    """PIPELINE-16: another tool changes the table, and the snapshots of the archive expire."""
    place = Place(tmp_path)
    lake = IcebergLake(place)
    lake.commit("one", 0, add(lake, 1, 3), at(3), {})
    found = events(place)
    archived = found.current_snapshot().snapshot_id
    found.add_files([f"{lake.root}/{file.path}" for file in add(lake, 1, 1, "other")])
    found.maintenance.expire_snapshots().by_id(archived).commit()
    again = IcebergLake(place)
    assert (again.offsets(), again.has("one", 0), again.has("one", 1)) == (at(3), True, False)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_two_archives_that_find_no_table_the_first_writer_wins(kind: str, tmp_path: Path) -> None:
    """PIPELINE-15: both begin at the beginning, and the second does not write everything once more."""
    place = Place(tmp_path / "lake")
    archive = Archive({"url": "http://127.0.0.1:1", "topic": "t"}, place, kind)
    lake, other = archive._lake(), archive._lake()
    begun, _ = archive._begun(lake, tmp_path / "checkpoint")
    other.commit("other", 0, [], at(3), {})
    with pytest.raises(PipelineError, match="another archive has brought"):
        lake.commit("this", 0, [], at(3), begun)


def test_what_an_iceberg_lake_cannot_do_is_said_in_one_line(tmp_path: Path) -> None:
    """PIPELINE-17: nothing but archive works on it, and a lake has one format."""
    from topics.cli import app

    lake = tmp_path / "lake"
    IcebergLake(Place(lake))
    source, target = ("--from", str(lake)), ("archive", "--topic", "t", "--to", str(lake))
    iceberg_target = (*target, "--format", "iceberg")
    refused = {
        ("replay", *source, "--to", "t", "--name", "n", "--state", str(tmp_path)): "has Iceberg tables",
        ("erase", *source, "--topic", "t"): "has Iceberg tables",
        ("report", *source): "has Iceberg tables",
        ("archive", "--to", str(lake), "--compact"): "has Iceberg tables",
        (*iceberg_target, "--typed"): "--typed needs the format delta",
        (*iceberg_target, "--follow-deletes"): "--follow-deletes needs the format delta",
        (*iceberg_target, "--compact"): "--compact needs the format delta",
        target: "holds an archive of another format than delta",
        (*target, "--catalog", "prod"): "--catalog needs the format iceberg",
        (*target[:-1], "gs://bucket/lake", "--format", "iceberg"): "in a directory or in s3://",
        (*target[:-1], "s3://bucket/lake", "--format", "iceberg"): "needs --catalog",
    }
    for arguments, text in refused.items():
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        assert done.exit_code == 1, arguments
        assert text in done.output
        assert len(done.output.splitlines()) == 1, done.output
    with pytest.raises(SourceError, match="has Iceberg tables"):
        archived.find(Place(lake), "t")
    with pytest.raises(PipelineError, match="name another --namespace"):
        IcebergLake(Place(tmp_path / "other"), f"sqlite:///{lake}/catalog.db")
