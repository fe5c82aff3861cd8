"""What is deleted on the server leaves the lake."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties
from typer.testing import CliRunner

from tests.harness.api import Api, until
from tests.harness.spark import Archives
from topics.pipeline.errors import PipelineError
from topics.pipeline.lake.compact import compact
from topics.pipeline.lake.erase import DeleteFollower, Eraser, Found, steps

pytestmark = pytest.mark.spark


def texts(root: Path) -> bytes:
    """Everything that a lake holds, data uncompressed."""
    import pyarrow.parquet as pq

    files = [path for path in root.rglob("*") if path.is_file()]
    content = [str(pq.ParquetFile(path).read().to_pylist()).encode() for path in files if path.suffix == ".parquet"]
    return b"".join([*content, *(path.read_bytes() for path in files)])


def eraser(archives: Archives) -> Eraser:
    return Eraser(archives.place, {"url": archives.source["url"]}, lambda: archives.spark)


def seqs(archives: Archives, table: str) -> list[int]:
    rows = DeltaTable(str(archives.root / table)).to_pyarrow_table().to_pylist()
    return sorted(row["seq"] for row in rows if row.get("topic", ".orders").endswith(".orders"))


def test_nobody_who_was_deleted_is_found_in_the_lake(archives: Archives, api: Api, topic_name: str) -> None:
    """PIPELINE-12: by tag from events, typed tables and errors, evicted records too; after a vacuum from every file."""
    orders = archives.source["topicPrefix"] + ".orders"
    for n in range(1, 5):
        api.write(orders, {"data": {"name": f"Zoe {n}"}, "tag": "customer-7"}, {"data": {"name": "Ann"}, "tag": "c-8"})
    api.write(orders, {"data": ["Zoe, no object"], "tag": "customer-7"})
    archives.run(typed=True, offsets_max=4)
    assert texts(archives.root).count(b"Zoe") >= 5
    api.put(orders, cap_records=6)
    api.erase(orders, match="customer-7")
    api.write(orders, {"data": {"name": "Zaire came back"}, "tag": "customer-7"})
    archives.run(typed=True)
    command = ["pipeline", "erase", "--from", str(archives.root), "--topic", orders, "--url", archives.source["url"]]
    ran = CliRunner().invoke(_app(), [*command, "--tag", "customer-7"])
    assert ran.exit_code == 0, ran.output
    assert f"{orders}: 5 records erased" in ran.output
    assert f"{orders}: 1 with this tag are live on the server and stay" in ran.output
    assert "events: its versions up to" in ran.output
    assert f"typed/{orders}: its versions up to" in ran.output
    assert (seqs(archives, "events"), seqs(archives, f"typed/{orders}")) == ([2, 4, 6, 8, 10], [2, 4, 6, 8, 10])
    assert seqs(archives, "errors") == []
    assert b"Zoe" in texts(archives.root), "older versions hold them"
    ran = CliRunner().invoke(_app(), [*command, "--tag", "customer-7", "--vacuum"])
    assert (ran.exit_code, "0 records erased" in ran.output) == (0, True), ran.output
    found = texts(archives.root)
    assert b"Zoe" not in found
    assert b"Zaire" in found
    api.fill(orders, 2, tag="c-9")
    archives.run(typed=True)
    assert seqs(archives, "events") == [2, 4, 6, 8, 10, 11, 12], "the archive goes on"
    list(compact(archives.place, 1 << 20))
    for table in ("typed", "errors"):
        shutil.rmtree(archives.root / table)
    archives.run(typed=True)
    assert (seqs(archives, f"typed/{orders}"), seqs(archives, "errors")) == ([2, 4, 6, 8, 10], [11, 12])


def _app() -> Any:
    from topics.cli import app

    return app


def test_only_tables_that_records_were_taken_from_are_said_to_hold_them(
    archives: Archives, api: Api, topic_name: str
) -> None:
    """PIPELINE-12: a table whose version rose because it caught up holds nothing that was erased."""
    orders = archives.source["topicPrefix"] + ".orders"
    api.write(orders, {"data": {"n": 1}, "tag": "customer-7"}, {"data": "a text", "tag": "c-8"})
    archives.run(typed=True)
    api.write(orders, {"data": {"n": 2}, "tag": "c-8"}, {"data": "another", "tag": "c-8"})
    archives.run()
    done = eraser(archives).forget(orders, "customer-9")
    assert (done.records, done.versions) == (0, {}), "the typed tables and the errors only caught up"
    api.write(orders, {"data": {"n": 3}, "tag": "c-8"}, {"data": "a third", "tag": "c-8"})
    archives.run()
    api.erase(orders, match="customer-7")
    before = {table: version_of(archives, table) for table in ("events", f"typed/{orders}")}
    done = eraser(archives).forget(orders, "customer-7")
    assert done.records == 1
    assert done.versions == {
        "events": before["events"],
        f"typed/{orders}": before[f"typed/{orders}"] + 1,
    }, "the errors caught up, and the typed table did before its record went"
    for table, version in done.versions.items():
        rows = [DeltaTable(str(archives.root / table), version=at).to_pyarrow_table() for at in (version, version + 1)]
        assert ["customer-7" in held["tag"].to_pylist() for held in rows] == [True, False]


def version_of(archives: Archives, table: str) -> int:
    return DeltaTable(str(archives.root / table)).version()


def test_deletes_are_followed_in_the_epoch_they_belong_to(archives: Archives, api: Api, topic_name: str) -> None:
    """PIPELINE-12: without a tag, what clients deleted and the server still knows; the old topic keeps its records."""
    orders = archives.source["topicPrefix"] + ".orders"
    api.write(orders, *({"data": n, "tag": "old"} for n in range(4)))
    archives.run()
    api.remove(orders).ok()
    api.write(orders, *({"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 7)))
    archives.run()
    api.erase(orders, match="odd")
    assert eraser(archives).follow(orders).records == 3
    assert eraser(archives).follow(orders).records == 0
    assert sorted((row["tag"], row["seq"]) for row in archives.events()) == [
        *(("even", seq) for seq in (2, 4, 6)),
        *(("old", seq) for seq in range(1, 5)),
    ]
    assert eraser(archives).forget(orders, "old").records == 4
    assert archives.frame(orders).count() == 3
    with pytest.raises(PipelineError, match="holds nothing of topic"):
        eraser(archives).follow("nothing")


def test_an_archive_follows_deletes_by_itself(archives: Archives, api: Api, topic_name: str) -> None:
    """PIPELINE-13: --follow-deletes, also while no record comes; a queue is left alone, since an ack is no erasure."""
    prefix = archives.source["topicPrefix"]
    orders, jobs = f"{prefix}.orders", f"{prefix}.jobs"
    api.put(jobs, type="queue")
    api.fill(jobs, 2)
    api.fill(orders, 6, tag="t")
    archive = archives.run(typed=True, follow_deletes=True)
    assert archive.finish() == 0
    api.erase(orders, before_seq=4)
    job = api.call("POST", f"/v0/topics/{jobs}/claim", {"node": "n", "max": 1}).ok(200)["claimed"][0]
    api.call("POST", f"/v0/topics/{jobs}/ack", {"node": "n", "seqs": [1], "lease_ids": [job["lease_id"]]}).ok(200)
    follower = DeleteFollower(lambda: eraser(archives), threading.Lock(), every_s=0.05)
    follower.start()
    until(lambda: seqs(archives, "events") == [4, 5, 6], "the deletes were followed")
    api.erase(orders, before_seq=6)
    follower.stop()
    assert follower.records == 5
    assert seqs(archives, "events") == [6]
    assert len([row for row in archives.events() if row["topic"] == jobs]) == 2
    api.fill(orders, 3, tag="late")
    archives.run(typed=True)
    api.erase(orders, match="late")
    follower.pass_once()
    assert follower.records == 8, "new files, and new deletes in those that were searched before"
    assert seqs(archives, "events") == [6]
    with pytest.raises(PipelineError, match="is a queue, where every ack deletes"):
        eraser(archives).follow(jobs)


def test_a_lake_of_an_older_release_is_erased_from_too(archives: Archives, api: Api, topic_name: str) -> None:
    """PIPELINE-12: its tables have no epochs, and statistics of texts in their logs from now on no more."""
    orders = archives.source["topicPrefix"] + ".orders"
    api.fill(orders, 4, tag="t")
    archives.run()
    events = DeltaTable(str(archives.root / "events"))
    old = events.to_pyarrow_table().drop_columns(["epoch"])
    offsets = {"topics.offsets": events.history(1)[0]["topics.offsets"]}
    shutil.rmtree(archives.root / "events")
    write_deltalake(
        str(archives.root / "events"),
        old,
        partition_by=["topic", "date"],
        commit_properties=CommitProperties(custom_metadata=offsets),
    )
    api.erase(orders, before_seq=3)
    assert eraser(archives).follow(orders).records == 2
    assert seqs(archives, "events") == [3, 4]
    assert DeltaTable(str(archives.root / "events")).metadata().configuration == {
        "delta.dataSkippingStatsColumns": "seq,ts,epoch"
    }
    assert archives.frame(orders).count() == 2


def test_an_erasure_is_cut_into_commits_of_bounded_size() -> None:
    import numpy as np

    seqs = np.array([1, 2, 3, *range(10, 400, 2)])
    found = list(steps("t", 7, Found(seqs, seqs * 1000)))
    assert [len(step.runs) for step in found] == [100, 96]
    assert [seq for step in found for a, b in step.runs for seq in range(a, b + 1)] == seqs.tolist()
    assert (found[0].ts_min, found[-1].ts_max) == (1000, 398_000)
    assert not list(steps("t", 7, Found(seqs[:0], seqs[:0])))


def test_an_erasure_beside_a_compaction_makes_no_record_twice(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-12: the table refuses the commit that was overtaken, and it is worked out again."""
    from topics.pipeline.lake import typed

    orders = archives.source["topicPrefix"] + ".orders"
    for _ in range(3):
        api.fill(orders, 4, tag="t")
    archives.run(offsets_max=4)
    api.erase(orders, before_seq=6)
    delete, overtaken = typed.Erasure.delete, []

    def slow(step: Any, table: Any, *arguments: Any, **named: Any) -> int:
        if not overtaken:
            overtaken.append(len(list(compact(archives.place, 1 << 20))))
        return delete(step, table, *arguments, **named)

    monkeypatch.setattr(typed.Erasure, "delete", slow)
    assert eraser(archives).follow(orders).records == 5
    assert overtaken
    assert seqs(archives, "events") == list(range(6, 13))
