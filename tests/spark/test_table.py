"""One table over the archive of a topic and its server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.harness.api import Api
from tests.harness.spark import Archives, Streams
from topics.pipeline.lake.compact import compact
from topics.spark import table, unified
from topics.spark.errors import DataLoss, SourceError

pytestmark = pytest.mark.spark

DOC = Path(__file__).parents[2] / "docs" / "spark.md"


def seqs(frame: Any) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_a_table_is_the_lake_and_the_tail_with_each_record_once(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPARK-30: what was archived comes from the lake though the server evicted it; deletes leave it at once."""
    other = f"{topic_name}.other"
    api.put(topic_name, cap_records=60)
    for n in range(1, 51):
        api.write(topic_name, {"data": n, "tag": "odd" if n % 2 else "even", "meta": {"k": "v"}})
    api.fill(other, 3)
    archives.run(offsets_max=20)
    api.fill(topic_name, 20, tag="late")
    read = archives.frame(topic_name)
    assert seqs(read) == list(range(1, 71)), "the server holds only 11 to 70"
    row = read.filter("seq = 2").first()
    assert (row.topic, row.data, row.tag, row.meta) == (topic_name, "2", "even", {"k": "v"})
    assert (
        read.columns
        == archives.spark.read.format("topics").options(url=archives.source["url"], topic=topic_name).load().columns
    )
    assert read.filter("seq <= 50").count() == 50
    assert len(read.inputFiles()) == 3, "history is read by Spark's own reader"

    api.erase(topic_name, match="late")
    api.erase(topic_name, match="odd")
    left = [*range(1, 11), *range(12, 51, 2)]
    assert seqs(archives.frame(topic_name)) == left, "what was evicted before the delete cannot be known here"
    monkeypatch.setattr(unified, "RUNS_IN_FILTER_MAX", 2)
    assert seqs(archives.frame(topic_name, columns="seq")) == left
    assert seqs(archives.frame(other)) == [1, 2, 3]


def test_a_table_knows_a_topic_that_was_created_again(archives: Archives, api: Api, topic_name: str) -> None:
    """SPARK-30: seqs of two epochs are never mixed, also after their files were merged."""
    api.fill(topic_name, 5, tag="old")
    archives.run()
    api.remove(topic_name).ok()
    api.fill(topic_name, 3, tag="new")
    assert [row.tag for row in archives.frame(topic_name).collect()] == ["new"] * 3, "the lake has only the old one"
    archives.run()
    api.fill(topic_name, 2, tag="new")
    for _ in range(2):
        found = archives.frame(topic_name).collect()
        assert sorted((row.seq, row.tag) for row in found) == [(seq, "new") for seq in range(1, 6)]
        list(compact(archives.place, 1 << 20))


def test_a_table_of_a_parquet_lake(archives: Archives, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 5, tag="old")
    archives.run(format="parquet")
    api.remove(topic_name).ok()
    api.fill(topic_name, 4, tag="new")
    archives.run(format="parquet")
    api.fill(topic_name, 2, tag="new")
    found = archives.frame(topic_name).collect()
    assert sorted((row.seq, row.tag) for row in found) == [(seq, "new") for seq in range(1, 7)]


def test_loss_is_loss_in_a_table_too(archives: Archives, api: Api, topic_name: str, tmp_path: Path) -> None:
    """SPARK-30: a gap within the lake, a gap between lake and tail, and a lake that is none."""
    api.put(topic_name, cap_records=2)
    api.fill(topic_name, 4)
    archives.run()
    assert seqs(archives.frame(topic_name)) == [3, 4], "as `earliest`: what came before the first record is no loss"
    api.fill(topic_name, 4)
    with pytest.raises(Exception, match=r"lost the records 5 to 6 \(reason: cap\)"):
        archives.frame(topic_name).collect()
    archives.run()
    with pytest.raises(DataLoss, match=r"lost the records 5 to 6 \(reason: cap\)"):
        archives.frame(topic_name)
    assert seqs(archives.frame(topic_name, failOnDataLoss=False)) == [3, 4, 7, 8]
    with pytest.raises(
        SourceError, match=r"there is no archive in .*`topics pipeline archive --topic \S+ --to \S+` makes one"
    ):
        table(archives.spark, topic_name, tmp_path / "none", url=archives.source["url"])
    for part in ({"startingOffsets": "latest"}, {"tags": "a"}, {"NODES": "n"}):
        with pytest.raises(SourceError, match="a table is the whole topic"):
            archives.frame(topic_name, **part)


def test_a_stream_begins_with_the_lake_and_goes_on_live(
    archives: Archives, streams: Streams, api: Api, topic_name: str
) -> None:
    """SPARK-31: each record once over lake, server and restarts; deletes are left out, evicted records are not."""
    api.put(topic_name, cap_records=30)
    api.write(
        topic_name, *({"data": n, "tag": "gone" if n in (4, 25) else "t", "meta": {"k": "v"}} for n in range(1, 31))
    )
    archives.run(offsets_max=8)
    api.fill(topic_name, 10, tag="late")
    api.erase(topic_name, match="gone")
    found = streams.run(archives.frame(topic_name, streaming=True, maxOffsetsPerTrigger=7))
    assert [(row.seq, row.data) for row in found][:3] == [(1, "1"), (2, "2"), (3, "3")]
    assert sorted(row.seq for row in found) == [seq for seq in range(1, 41) if seq != 25]
    assert (found[0].topic, found[0].meta) == (topic_name, {"k": "v"})
    assert len(streams.batches) == 6, "from seq 0 to 40 in steps of 7"
    # Far behind: what comes next is only in the lake.
    api.fill(topic_name, 20, tag="late")
    archives.run()
    list(compact(archives.place, 1 << 20))
    api.fill(topic_name, 25, tag="late")
    assert api.state(topic_name)["earliest_seq"] > 41
    assert sorted(row.seq for row in streams.run(archives.frame(topic_name, streaming=True))) == list(range(41, 86))
    assert streams.run(archives.frame(topic_name, streaming=True)) == []


def test_the_page_on_tables_and_erasure_runs_as_it_stands(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPARK-30: the Python and the commands of docs/spark.md, in a directory with an archive of `orders`."""
    from topics.cli import app

    api.remove("orders")
    api.write("orders", *({"data": n, "tag": "customer-7" if n < 3 else "other"} for n in range(4)))
    archives.source = {"url": archives.source["url"], "topics": "orders"}
    archives.run()
    api.erase("orders", match="customer-7")
    monkeypatch.chdir(archives.root.parent)
    monkeypatch.setenv("TOPICS_URL", archives.source["url"])
    page = DOC.read_text(encoding="utf-8")
    blocks = [section.partition("```python\n")[2].partition("```")[0] for section in page.split("\n## ")]
    block = next(block for block in blocks if "table(" in block)
    exec(compile(block, str(DOC), "exec"), {})
    assert "|other|    1|" in capsys.readouterr().out
    console = page.partition("\n### erase\n")[2].partition("```console\n")[2].partition("```")[0].splitlines()
    shown: list[str] = []
    for line in console:
        if line.startswith("$ topics "):
            ran = CliRunner().invoke(app, shlex.split(line.removeprefix("$ topics ")))
            assert ran.exit_code == 0, ran.output
            shown += ran.output.splitlines()
        else:
            assert line in shown, shown


def test_a_seq_that_a_crash_handed_out_again_counts_once(archives: Archives, api: Api, topic_name: str) -> None:
    """SPARK-30: where the archive read a topic again from its beginning, the later record of a seq is the record."""
    from topics.pipeline.lake.delta import DeltaLake
    from topics.pipeline.lake.files import Written

    api.fill(topic_name, 6)
    archives.run()
    first = archives.events()
    lake = DeltaLake(archives.place)
    offsets = lake.offsets()
    assert offsets is not None
    # The same files once more, as after a crash whose tail was not durable.
    again = [file for file in archives.held() if file.topic == topic_name]
    gap = Written(None, topic_name, None, 0, 2, 7, 8, 0, 0, "head_went_back", offsets[topic_name]["epoch"])
    copied = [file._replace(path=archives.copy(str(file.path))) for file in again]
    lake.commit("topics-archive-again", 0, [*copied, gap], offsets)
    assert len(archives.events()) == 2 * len(first)
    assert seqs(archives.frame(topic_name)) == [1, 2, 3, 4, 5, 6]
