"""The pipelines a user runs: archive, transform, replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api, until
from tests.harness.spark import Archives, finish, records
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark


def test_an_archive_holds_every_record_once_and_every_gap(archives: Archives, api: Api, topic_name: str) -> None:
    """PIPELINE-1: offsets and data commit together, partitioned by topic and date, losses in a table of their own."""
    from deltalake import DeltaTable

    orders, clicks = f"{topic_name}:orders", f"{topic_name}.clicks"
    api.write(orders, *({"data": {"n": n}, "tag": "t", "meta": {"k": "v"}} for n in range(1, 6)))
    api.put(clicks, cap_records=2)
    api.fill(clicks, 6)
    archive = archives.run(offsets_max=4)
    assert archive.progress.records == 7, "the count is that of the table, without the gaps"
    assert [(row["topic"], row["seq"]) for row in archives.events()] == [
        *((clicks, seq) for seq in (5, 6)),
        *((orders, seq) for seq in range(1, 6)),
    ]
    first = archives.events()[2]
    assert (json.loads(first["data"]), first["tag"], dict(first["meta"])) == ({"n": 1}, "t", {"k": "v"})
    assert {(topic, reason) for topic, _, _, reason in archives.losses()} == {(clicks, "cap")}
    assert sorted(seq for _, a, b, _ in archives.losses() for seq in range(a, b + 1)) == [1, 2, 3, 4]
    table = DeltaTable(str(archives.root / "events"))
    assert table.metadata().partition_columns == ["topic", "date"]
    newest = json.loads(table.history(1)[0]["topics.offsets"])
    assert {topic: at["seq"] for topic, at in newest.items()} == {orders: 5, clicks: 6}


def test_a_replayed_batch_is_a_no_op_for_the_archive(archives: Archives, api: Api, topic_name: str) -> None:
    """The crash after the table's commit and before Spark's: `transaction_version` is compared first."""
    api.put(topic_name, cap_records=3)
    api.fill(topic_name, 5)
    archives.run()
    before, lost = archives.events(), archives.losses()
    for left in (archives.root / "_checkpoint" / "commits").glob("*0*"):
        left.unlink()
    api.fill(topic_name, 3)
    archives.run()
    assert [row["seq"] for row in before] == [3, 4, 5]
    assert [row["seq"] for row in archives.events()] == [3, 4, 5, 6, 7, 8]
    assert archives.losses() == lost == [(topic_name, 1, 2, "cap")]


def test_an_archive_begins_where_a_kill_left_half_of_its_first_offsets(
    archives: Archives, api: Api, topic_name: str
) -> None:
    """Spark begins no query over such a file, so an archive that was killed in its first moment never began again."""
    api.fill(topic_name, 3)
    offsets = archives.root / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.eefd554b.tmp", "..0.eefd554b.tmp.crc"):
        (offsets / name).touch()
    archives.run()
    assert [row["seq"] for row in archives.events()] == [1, 2, 3]
    assert not list(offsets.glob(".*.tmp"))


def test_losses_are_completed_after_a_crash_between_the_two_tables(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no atomicity across tables: the gaps ride in the commit of the events."""
    from topics.pipeline.lake.delta import DeltaLake

    api.put(topic_name, cap_records=1)
    api.fill(topic_name, 4)

    def crash(*_: Any) -> None:
        raise RuntimeError("crashed between the two commits")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLake, "_lose", crash)
        with pytest.raises(Exception, match="between the two commits"):
            archives.run()
    assert archives.losses() == []
    assert [row["seq"] for row in archives.events()] == [4]
    archives.run()
    assert archives.losses() == [(topic_name, 1, 3, "cap")]
    assert [row["seq"] for row in archives.events()] == [4]


def epoch(api: Api, topic: str) -> int:
    found: int = api.call("GET", f"/v0/topics/{topic}/plan").ok(200)["epoch"]
    return found


def test_an_archive_that_lost_its_checkpoint_goes_on_from_its_table(
    archives: Archives, api: Api, topic_name: str, tmp_path: Path
) -> None:
    api.fill(topic_name, 4)
    archives.run(checkpoint=tmp_path / "first")
    api.fill(topic_name, 2)
    archives.run(checkpoint=tmp_path / "second")
    assert [row["seq"] for row in archives.events()] == [1, 2, 3, 4, 5, 6]
    # What was lost meanwhile is found by the places of the table, and in a topic that is new from its beginning on.
    old, other = epoch(api, topic_name), f"{topic_name}.other"
    api.remove(topic_name).ok()
    api.fill(topic_name, 2)
    api.put(other, cap_records=1)
    api.fill(other, 3)
    archives.run(checkpoint=tmp_path / "third")
    new, others = epoch(api, topic_name), epoch(api, other)
    assert sorted((row["topic"], row["epoch"], row["seq"]) for row in archives.events()) == [
        *((topic_name, old, seq) for seq in range(1, 7)),
        *((topic_name, new, seq) for seq in (1, 2)),
        (other, others, 3),
    ]
    assert sorted(archives.losses()) == [(topic_name, 1, 2, "recreated"), (other, 1, 2, "cap")]


def test_files_are_cut_at_their_target_size(archives: Archives, api: Api, topic_name: str) -> None:
    for _ in range(3):
        api.write(topic_name, *({"data": os.urandom(500).hex()} for _ in range(1000)))
    archive = archives.run(file_bytes=200_000)
    assert archive.progress.files > 3
    assert len(archives.events()) == 3000


def test_a_plain_parquet_archive_holds_every_record_once(
    spark: Any, archives: Archives, api: Api, topic_name: str
) -> None:
    topic = f"{topic_name}:a"
    api.put(topic, cap_records=3)
    api.fill(topic, 5)
    archives.run(format="parquet")
    for left in (archives.root / "_checkpoint" / "commits").glob("*0*"):
        left.unlink()
    archives.run(format="parquet")
    api.fill(topic, 1)
    archives.run(format="parquet")
    rows = spark.read.parquet(str(archives.root / "events")).collect()
    assert sorted((row.topic, row.seq) for row in rows) == [(topic, seq) for seq in (3, 4, 5, 6)]
    losses = spark.read.json(str(archives.root / "losses")).collect()
    assert [(row.topic, row.gap_from, row.gap_to, row.reason) for row in losses] == [(topic, 1, 2, "cap")]


def test_a_replay_keeps_order_seq_and_ts_and_is_done_once(
    spark: Any, archives: Archives, server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    from topics.pipeline.errors import PipelineError
    from topics.pipeline.replay import Replay

    for n in range(1, 21):
        api.write(f"{topic_name}.source", {"data": {"n": n}, "tag": f"t{n % 2}", "meta": {"k": "v"}})
    archives.run(offsets_max=7)
    target = f"{topic_name}-replayed"

    def replay(**choice: Any) -> None:
        given = {"url": server.url}
        chosen = [f"{topic_name}.source"]
        list(Replay(given, archives.place, target, topic_name, tmp_path / "state", chosen, **choice).run(spark))

    replay(seq_from=5, seq_to=16, where="tag = 't1'")
    found = records(api, target)
    assert [record["data"]["n"] for record in found] == [5, 7, 9, 11, 13, 15]
    original = api.read(f"{topic_name}.source", 4)["records"][0]
    assert found[0]["meta"] == {
        "k": "v",
        "replayed_topic": f"{topic_name}.source",
        "replayed_seq": "5",
        "replayed_ts": str(original["$ts"]),
    }
    replay(seq_from=5, seq_to=16, where="tag = 't1'")
    assert len(records(api, target)) == 6, "the same name is the same replay"
    with pytest.raises(PipelineError, match="begun with another target or selection"):
        replay(seq_from=1)


def test_a_replay_goes_slice_by_slice_and_on_where_it_was_killed(
    spark: Any, archives: Archives, server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """Whatever the size of the selection, one slice of it is staged at a time, and none is written twice."""
    from topics.pipeline.replay import Replay

    source, target, state = f"{topic_name}.source", f"{topic_name}-replayed", tmp_path / "state"
    for n in range(1, 51):
        api.write(source, {"data": n})
    archives.run(offsets_max=20)

    def replay() -> Replay:
        place = (archives.place, target, topic_name, state, [source])
        return Replay({"url": server.url}, *place, slice_records=10, staging=f"file://{tmp_path}/staging")

    def staged() -> int:
        return sum(file.stat().st_size for file in tmp_path.rglob("*.staged"))

    running = replay().run(spark)
    first = next(running)
    assert (first.slice, first.slices, first.records, first.left) == (1, 5, 10, 40)
    assert [record["data"] for record in records(api, target)] == list(range(1, 11))
    assert staged() == 0, "what is published is not kept"
    # Killed after the slice was published and before that was noted; and the archive has grown since.
    (state / f"replay-{topic_name}.done").unlink()
    api.write(source, {"data": 51})
    archives.run()
    assert [done.records for done in replay().run(spark)] == [10] * 5
    assert [record["data"] for record in records(api, target)] == list(range(1, 51))
    assert staged() == 0
    assert list((tmp_path / "staging").rglob("manifest.json"))
    assert not list(state.rglob("manifest.json")), "it is staged where --staging says"
    assert list(replay().run(spark)) == []


def test_a_replay_is_paced(spark: Any, archives: Archives, server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """`recordsPerSecond` paces what is appended, and not what the server already has."""
    import time

    from topics.spark.client import Client
    from topics.spark.depot import depot_of
    from topics.spark.options import WriteOptions
    from topics.spark.rows import Rendered
    from topics.spark.stage import Stage

    client = Client(WriteOptions({"url": server.url, "topic": "paced"}).address)
    stage = Stage(depot_of("stagingDir", tmp_path), "paced", 0)
    file = stage.write([Rendered.of("paced", *[b'{"data":1}'] * 100)], 0)
    started = time.monotonic()
    stage.publish([file], client, records_per_second=200)
    assert time.monotonic() - started >= 0.5
    started = time.monotonic()
    assert stage.publish([file], client, records_per_second=1).deduped == 100
    assert time.monotonic() - started < 50, "at one a second it would take 100"
    client.close()


def test_a_transform_runs_windows_over_topics(
    spark: Any, server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """Each source topic is a view, event time is `ts`, rows become records."""
    from topics.pipeline.errors import PipelineError
    from topics.pipeline.transform import Transform

    topic = f"{topic_name}.clicks"
    view = "".join(c if c.isalnum() else "_" for c in topic)
    api.write(topic, *({"data": {"user": f"u{n % 2}", "n": n}} for n in range(10)))

    def run(sql: str, target: str, **options: Any) -> None:
        pipeline = Transform({"url": server.url}, [topic], sql, target, tmp_path / target, **options)
        query = pipeline.start(spark, True, "1 second", tmp_path / "pause")
        finish(query)

    plain, counted = f"{topic_name}-plain", f"{topic_name}-counted"
    run(
        f"SELECT get_json_object(data, '$.user') AS user, seq FROM {view} WHERE seq > 8;",
        plain,
        staging=str(tmp_path / "staged"),
    )
    assert list((tmp_path / "staged").rglob("manifest.json"))
    assert [record["data"] for record in records(api, plain)] == [{"user": "u0", "seq": 9}, {"user": "u1", "seq": 10}]
    sql = f"""SELECT to_json(struct(get_json_object(data, '$.user') AS user, count(*) AS n)) AS data, 'count' AS tag
              FROM {view} GROUP BY window(ts, '1 hour'), get_json_object(data, '$.user')"""
    run(sql, counted, mode="update", staging=str(tmp_path / "staged-update"))
    assert list((tmp_path / "staged-update").rglob("manifest.json"))
    assert not list((tmp_path / counted).rglob("manifest.json"))
    found = sorted((record["$tag"], record["data"]["user"], record["data"]["n"]) for record in records(api, counted))
    assert found == [("count", "u0", 5), ("count", "u1", 5)]
    with pytest.raises(PipelineError, match=r"the SQL cannot be used: .*no_such_view"):
        run("SELECT * FROM no_such_view", plain)


def cli(*arguments: str, **settings: str) -> subprocess.Popen[str]:
    """A command of pipelines in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "topics", "pipeline", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", **settings},
        process_group=0,
    )


@pytest.mark.timeout(400)
def test_the_command_archives_until_a_signal_stops_it(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """PIPELINE-9: SIGTERM to the whole process group finishes the batch: exit code 0, and all of it is in the table."""
    from deltalake import DeltaTable

    api.fill(topic_name, 50)
    lake = tmp_path / "lake"
    arguments = ("--url", server.url, "--topic", topic_name, "--to", str(lake), "--interval", "100 milliseconds")
    command = cli("archive", "--name", topic_name, *arguments, "--master", "local[1]")
    try:
        until(lambda: command.poll() is not None or list((lake / "events").rglob("*.parquet")), "it has a batch", 300)
        os.killpg(command.pid, signal.SIGTERM)
        out, err = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 0, err
    assert "50 records" in out
    assert "the tables are in" in out
    assert DeltaTable(str(lake / "events")).to_pyarrow_table().num_rows == 50
    [report] = api.read("topics.pipelines", 0, match=topic_name, limit=1000)["records"][-1:]
    assert (report["data"]["state"], report["data"]["rows"], report["data"]["seq"]) == ("stopped", 50, 50)


@pytest.mark.timeout(400)
@pytest.mark.skipif("TOPICS_CLUSTER" not in os.environ, reason="takes 40 s: make test-cluster runs it")
def test_a_command_whose_spark_has_ended_says_so_at_its_end(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    api.fill(topic_name, 5)
    lake = tmp_path / "lake"
    command = cli("archive", "--url", server.url, "--topic", topic_name, "--to", str(lake), "--master", "local[1]")
    try:
        until(lambda: command.poll() is not None or list((lake / "events").rglob("*.parquet")), "it has a batch", 300)
        [jvm] = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        os.kill(int(jvm), signal.SIGKILL)
        _, err = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 1
    assert err.splitlines()[-1].startswith("topics pipeline: Spark has ended, and nothing can go on without it: start")
    assert "py4j" not in err.lower()


def test_the_command_says_what_is_wrong_in_one_line(server: ServerProcess, tmp_path: Path) -> None:
    missing = ("--url", server.url, "--topic", "no-such-topic", "--to", str(tmp_path / "x"), "--once")
    command = cli("archive", *missing, "--master", "local[1]")
    _, err = command.communicate(timeout=90)
    assert command.returncode == 1
    assert err.splitlines()[-1].startswith('topics pipeline: topic "no-such-topic"')
    assert "Traceback" not in err
    assert "\tat " not in err
