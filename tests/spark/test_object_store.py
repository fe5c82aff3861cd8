"""Lakes in an object store, and two archives that want the same one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.harness.api import Api
from tests.harness.object_store import BUCKET, SECRET, ObjectStore, Turnstile, object_store, use
from tests.harness.spark import records
from topics.pipeline.errors import PipelineError
from topics.pipeline.lake import typed as typed_tables
from topics.pipeline.lake.contents import held
from topics.pipeline.lake.delta import DeltaLake
from topics.pipeline.lake.files import FILE_SCHEMA, Files, Written
from topics.pipeline.lake.typed import ERASED, Erasure, Typed
from topics.spark.client import Client
from topics.spark.depot import depot_of, plain
from topics.spark.errors import SourceError
from topics.spark.options import WriteOptions
from topics.spark.place import BadPlace, Place
from topics.spark.rows import Rendered
from topics.spark.stage import Stage, StagedFile
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

# Two runs in one session: what the second knows of the first is what the table says.
ARCHIVE_TWICE = """
import sys
from topics import Client
from topics.pipeline.archive import Archive
from topics.spark import session
from topics.spark.place import Place

url, topic, lake, pause = sys.argv[1:]
spark = session(master="local[2]", config={"spark.ui.enabled": "false"}, quiet=False)
spark.sparkContext.setLogLevel("INFO")
for _ in range(2):
    archive = Archive({"url": url, "topics": topic}, Place(lake), typed=True, offsets_max=4)
    query = archive.start(spark, True, "1 second", __import__("pathlib").Path(pause))
    query.awaitTermination()
    assert query.exception() is None, query.exception()
    with Client(url) as client:
        client.topic(topic).write({"n": 7}, tag="late")
"""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def rows(place: Place, table: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(str(place / table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: int(row["seq"]))


def test_a_lake_in_an_object_store(
    store: ObjectStore,
    server: ServerProcess,
    api: Api,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIPELINE-14: archive, typed tables, compact, erase and report; restarts need no checkpoint; no key in any log."""
    from deltalake import DeltaTable

    from topics.cli import app

    lake = f"s3://{BUCKET}/{topic_name}"
    for n in range(1, 7):
        api.write(topic_name, {"data": {"n": n}, "tag": "odd" if n % 2 else "even"})
    ran = subprocess.run(
        [sys.executable, "-c", ARCHIVE_TWICE, server.url, topic_name, lake, str(tmp_path / "pause")],
        env={**os.environ, **store.environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert SECRET not in ran.stdout + ran.stderr
    use(store, monkeypatch)
    place = Place(lake)
    assert [row["seq"] for row in rows(place, "events")] == list(range(1, 8)), "each record once, over two runs"
    assert [row["n"] for row in rows(place, f"typed/{topic_name}")] == list(range(1, 8))
    api.erase(topic_name, match="odd")
    steps = (
        ["archive", "--to", lake, "--compact"],
        ["erase", "--from", lake, "--topic", topic_name, "--url", server.url, "--vacuum"],
        ["report", "--from", lake, "--to", f"{lake}/pages/report.html", "--url", server.url],
    )
    for step in steps:
        done = CliRunner().invoke(app, ["pipeline", *step])
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
    for table in ("events", f"typed/{topic_name}"):
        assert [row["seq"] for row in rows(place, table)] == [2, 4, 6, 7]
        assert len(DeltaTable(str(place / table)).file_uris()) == 1
    assert b"<title>Archive report</title>" in place.read("pages/report.html")


def add(lake: DeltaLake, first: int, last: int, data: list[str] | None = None) -> list[Written]:
    """Files with these seqs, not committed."""
    seqs = pa.array(range(first, last + 1), pa.int64())
    times = pa.array([seq * 1000 for seq in range(first, last + 1)], pa.timestamp("us", "UTC"))
    columns = {"seq": seqs, "ts": times, "epoch": pa.repeat(pa.scalar(7), len(seqs))}
    columns["data"] = pa.array(data or [None] * len(seqs), pa.string())
    arrays = [columns.get(field.name, pa.nulls(len(seqs), field.type)).cast(field.type) for field in FILE_SCHEMA]
    files = Files(str(lake.root), FILE_SCHEMA, 0, 1 << 20)
    files.add("topic=t/date=1970-01-01/", "t", "1970-01-01", pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA))
    return files.close()


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_of_two_archives_of_a_topic_the_first_writer_wins(
    kind: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-15: both have looked, and then both commit; the second is refused and its files are never seen."""
    use(store, monkeypatch)
    place = Place(f"s3://{BUCKET}/race" if kind == "s3" else f"file://{tmp_path}/race")

    def at(seq: int) -> dict[str, Any]:
        return {"t": {"epoch": 7, "seq": seq}}

    DeltaLake(place).commit("before", 0, add(DeltaLake(place), 1, 3), at(3), {})
    first, second = DeltaLake(place), DeltaLake(place)
    looked: list[Any] = []
    look = second._check

    def overtaken(*arguments: Any) -> None:
        look(*arguments)
        if not looked:
            looked.append(arguments)
            first.commit("one", 0, add(first, 4, 5), at(5), at(3))

    monkeypatch.setattr(second, "_check", overtaken)
    with pytest.raises(PipelineError, match=r'another archive has brought topic "t" .* to seq 5 .* went on from seq 3'):
        second.commit("two", 0, add(second, 4, 6), at(6), at(3))
    assert looked
    assert [row["seq"] for row in rows(place, "events")] == [1, 2, 3, 4, 5]
    assert sorted(file.seq_max for file in held(place)) == [3, 5]


def test_archives_of_different_topics_share_a_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-15: a commit that was overtaken by one of other topics is made again."""
    place = Place(tmp_path)
    first, second = DeltaLake(place), DeltaLake(place)
    look = second._check
    looked: list[Any] = []

    def overtaken(*arguments: Any) -> None:
        look(*arguments)
        if not looked:
            looked.append(arguments)
            first.commit("one", 0, [], {"a": {"epoch": 1, "seq": 9}}, {})

    monkeypatch.setattr(second, "_check", overtaken)
    second.commit("two", 0, add(second, 1, 2), {"t": {"epoch": 7, "seq": 2}}, {})
    assert DeltaLake(place).offsets() == {"a": {"epoch": 1, "seq": 9}, "t": {"epoch": 7, "seq": 2}}


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_typed_column_becomes_one_of_fractions_after_an_erasure(
    kind: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-14: the table is written anew without what was erased, or not at all if another process was first."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    use(store, monkeypatch)
    place = Place(f"s3://{BUCKET}/fractions" if kind == "s3" else tmp_path)
    lake = DeltaLake(place)

    def archive(batch: int, first: int, *data: str) -> None:
        last = first + len(data) - 1
        files = [file._replace(epoch=7) for file in add(lake, first, last, list(data))]
        lake.commit("app", batch, files, {"t": {"epoch": 7, "seq": last}})
        typed.catch_up(lambda: None)

    typed = Typed(place, 1 << 20)
    archive(0, 1, '{"n": 1, "epoch": "private-1"}', '{"n": 2, "epoch": "private-2"}', '{"n": 3}')
    erasure = Erasure("t", 7, [(2, 2)], 2000, 2000)
    assert erasure.delete(DeltaTable(str(place / "events")), "topic = 't' AND ", {ERASED: erasure.to_json()}) == 1
    Typed(place, 1 << 20).catch_up(lambda: None)
    archive(1, 4, '{"n": 4.5}')
    found = DeltaTable(str(place / "typed/t"))
    assert [(row["seq"], row["n"]) for row in rows(place, "typed/t")] == [(1, 1.0), (3, 3.0), (4, 4.5)]
    for version in range(found.version() + 1):
        assert b"private" not in (place / "typed/t").read(f"_delta_log/{version:020d}.json")
    archive(2, 5, '{"n": 5}')
    with pytest.raises(CommitFailedError):
        typed_tables._rewrite(found, ["n"])
    assert [row["seq"] for row in rows(place, "typed/t")] == [1, 3, 4, 5]


@pytest.mark.parametrize("given", ["ftp://host/lake", "s3://", "s3:bucket", "s3://user:word@bucket/lake"])
def test_a_place_that_is_none_is_refused_and_no_password_is_repeated(given: str) -> None:
    with pytest.raises(BadPlace) as refused:
        Place(given)
    assert "word@" not in str(refused.value)


def test_a_file_address_is_a_directory(tmp_path: Path) -> None:
    assert Place(f"file://{tmp_path}").path == Place(tmp_path).path == Place(f"file:{tmp_path}").path
    assert str(Place("s3://bucket/lake/") / "events") == "s3://bucket/lake/events"
    assert Place("s3://bucket/lake").for_spark == "s3a://bucket/lake"


def test_a_write_is_staged_in_an_object_store(
    store: ObjectStore, server: ServerProcess, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPARK-32: the first manifest wins, is published once, and what is published is not kept."""
    use(store, monkeypatch)
    root = f"s3://{BUCKET}/{topic_name}"
    client = Client(WriteOptions({"url": server.url, "topic": topic_name}).address)

    def attempt(epoch: int, *values: Any) -> tuple[Stage, StagedFile]:
        stage = Stage(depot_of("stagingDir", root), "p", epoch)
        members = [json.dumps({"data": value}).encode() for value in values]
        return stage, stage.write([Rendered.of(topic_name, *members)], 0)

    stage, first = attempt(3, "x" * 900_000, 2, 3)
    _, second = attempt(3, 3, 2, 1)
    assert stage.decide([first]) == stage.decide([second]) == [first]
    assert not stage.is_done()
    assert stage.publish(stage.decide([second]), client) == (3, 0)
    assert stage.is_done()
    assert stage.publish(stage.decide([]), client) == (0, 3)
    assert [record["data"] for record in records(api, topic_name)] == ["x" * 900_000, 2, 3]
    later, third = attempt(4, 4)
    later.decide([third])
    later.forget_earlier()
    assert Place(root).directories("p") == ["000000000004"]
    later.forget_content()
    assert later.decide([]) == [third], "what was decided stays known"
    with pytest.raises(SourceError, match=r'part-.*is not there: .* "stagingDir"'):
        later.publish([third], client)
    later.forget()
    assert Place(root).directories("") == []
    client.close()


def test_of_two_manifests_the_one_that_arrives_first_wins(
    store: ObjectStore, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPARK-32: a driver that saw no manifest, and is overtaken before its own arrives, takes the other one."""
    use(store, monkeypatch)
    root = f"s3://{BUCKET}/{topic_name}"
    decide = (
        "import sys; from topics.spark.depot import depot_of; from topics.spark.stage import Stage, StagedFile;"
        "stage = Stage(depot_of('stagingDir', sys.argv[1]), 'p', 0);"
        "print(stage.decide([StagedFile(sys.argv[2], 0, 1, 1)])[0].name)"
    )

    def driver(name: str, endpoint: str) -> str:
        environ = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
        command = [sys.executable, "-c", decide, root, name]
        return subprocess.run(
            command, env=environ, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    straight = store.environment["AWS_ENDPOINT_URL"]
    overtaking: list[str] = []
    turnstile = Turnstile(
        store, "_delta_log/00000000000000000000.json", lambda: overtaking.append(driver("theirs", straight))
    )
    assert driver("ours", turnstile.endpoint) == "theirs"
    assert overtaking == ["theirs"]
    turnstile.close()


def test_a_place_for_staging_that_is_none_is_refused_with_the_way_out() -> None:
    with pytest.raises(SourceError, match=r'option "checkpointLocation" is "hdfs://a/b": .* "stagingDir" .* s3://'):
        depot_of("checkpointLocation", "hdfs://a/b")
    with pytest.raises(SourceError, match="holds a password") as refused:
        depot_of("stagingDir", "s3://user:word@bucket/x")
    assert "word@" not in str(refused.value)


def test_an_object_store_that_refuses_is_named_in_one_line(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK-32: no colours, no frames, and not the key."""
    use(store, monkeypatch)
    stage = Stage(depot_of("stagingDir", "s3://no-such-bucket/x"), "p", 0)
    with pytest.raises(SourceError, match=r"records cannot be staged in s3://no-such-bucket/x") as refused:
        stage.write([Rendered.of("t", b'{"data":1}')], 0)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert plain(OSError("a\n  \x1b[31m\u21b3\x1b[0m b")) == "a b"


def test_a_page_of_any_size_is_written(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-14."""
    use(store, monkeypatch)
    place, page = Place(f"s3://{BUCKET}/pages"), os.urandom(1 << 20) * 9
    place.write("large", page)
    assert place.read("large") == page
