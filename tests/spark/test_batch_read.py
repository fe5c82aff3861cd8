"""Topics as Spark tables."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from tests.harness.spark import Reader, Streams
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

DOC = Path(__file__).parents[2] / "docs" / "spark.md"


def test_a_topic_is_a_table_with_the_documented_columns(load: Reader, api: Api, topic_name: str) -> None:
    """SPARK-1: the schema, `data` as JSON text, absent fields as null."""
    api.write(topic_name, {"data": {"n": 1}, "tag": "t", "node": "a", "meta": {"k": "v", "l": "ü"}}, {"data": "é"})
    frame = load()
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    assert types == {
        "topic": "string",
        "seq": "bigint",
        "ts": "timestamp",
        "node": "string",
        "tag": "string",
        "meta": "map<string,string>",
        "data": "string",
    }
    assert [field.name for field in frame.schema.fields if not field.nullable] == ["topic", "seq", "ts", "data"]
    with_gaps = load(includeTombstones=True)
    assert [field.name for field in with_gaps.schema.fields if not field.nullable] == ["topic"]
    first, second = frame.orderBy("seq").collect()
    ts = api.read(topic_name)["records"][0]["$ts"]
    assert first.ts.replace(tzinfo=UTC) == datetime.fromtimestamp(ts / 1000, UTC)
    assert (first.topic, first.seq, first.node, first.tag) == (topic_name, 1, "a", "t")
    assert (first.meta, first.data) == ({"k": "v", "l": "ü"}, '{"n": 1}')
    assert (second.seq, second.node, second.tag, second.meta, second.data) == (2, None, None, None, '"\\u00e9"')


def test_offsets_are_cursors(load: Reader, api: Api, topic_name: str) -> None:
    """A read covers (start, end], per topic or in one word."""
    api.fill(topic_name, 10)

    def seqs(**options: Any) -> list[int]:
        return sorted(row.seq for row in load(**options).collect())

    assert seqs(startingOffsets={topic_name: 4}, endingOffsets={topic_name: 7}) == [5, 6, 7]
    assert seqs(startingOffsets="latest") == []
    assert seqs(startingOffsets={topic_name: "earliest"}, endingOffsets={topic_name: -1}) == list(range(1, 11))
    assert seqs(startingOffsets={topic_name: {"epoch": epoch(api, topic_name), "seq": 9}}) == [10]


def epoch(api: Api, topic: str) -> int:
    found: int = api.get(f"/v0/topics/{topic}/plan").ok()["epoch"]
    return found


def test_timestamps_bound_a_read(load: Reader, api: Api, topic_name: str) -> None:
    """`startingTimestamp` is included, `endingTimestamp` is not."""
    api.fill(topic_name, 3)
    ts = api.read(topic_name)["records"][0]["$ts"]
    assert load(startingTimestamp=ts, endingTimestamp=ts + 1).count() == 3
    assert load(startingTimestamp=ts + 1).count() == 0
    assert load(endingTimestamp=ts).count() == 0


def test_several_topics_by_list_and_by_prefix(load: Reader, api: Api, topic_name: str) -> None:
    for part in "abc":
        api.fill(f"{topic_name}.{part}", 2)
    by_list = load(topics=f"{topic_name}.a, {topic_name}.c").collect()
    assert {row.topic for row in by_list} == {f"{topic_name}.a", f"{topic_name}.c"}
    by_prefix = load(topicPrefix=f"{topic_name}.", startingOffsets={f"{topic_name}.b": 1}).collect()
    assert sorted((row.topic[-1], row.seq) for row in by_prefix) == [("a", 1), ("a", 2), ("b", 2), ("c", 1), ("c", 2)]


def test_a_pattern_chooses_topics_by_their_whole_names(
    spark: Any, streams: Streams, server: ServerProcess, api: Api, topic_name: str
) -> None:
    for part in ("a", "b", "bb"):
        api.fill(f"{topic_name}.{part}", 2)
    options = {"url": server.url, "subscribePattern": rf"{re.escape(topic_name)}\.[ab]"}
    rows = spark.read.format("topics").options(**options).load().collect()
    assert sorted({row.topic for row in rows}) == [f"{topic_name}.a", f"{topic_name}.b"]
    api.fill(f"{topic_name}.a", 1)
    followed = streams.run(**options)
    assert sorted((row.topic[-1], row.seq) for row in followed) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]


def test_a_table_of_the_catalog_keeps_its_options(spark: Any, server: ServerProcess, api: Api, topic_name: str) -> None:
    """Spark hands the reader of such a table no options."""
    api.fill(topic_name, 10)
    given = f"url '{server.url}', topic '{topic_name}', startingOffsets '{{\"{topic_name}\": 4}}'"
    table = f"kept_{abs(hash(topic_name))}"
    spark.sql(f"CREATE TABLE {table} USING topics OPTIONS ({given})")
    try:
        assert spark.sql(f"SELECT count(*) AS n FROM {table}").first().n == 6
        assert spark.sql(f"SELECT count(*) AS n FROM {table} WITH (startingOffsets = 'earliest')").first().n == 10
        assert spark.table(table).schema.names == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
        with pytest.raises(Exception, match=r"INSERT and CREATE TABLE \.\.\. AS SELECT pass none on: write with Data"):
            spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    finally:
        spark.sql(f"DROP TABLE {table}")
    with pytest.raises(Exception, match='option "token" cannot be an option of a table'):
        spark.sql(f"CREATE TABLE {table} USING topics OPTIONS ({given}, token 'secret-0123456789')")


def test_a_temporary_view_takes_all_options_and_spark_ignores_those_of_a_query(
    spark: Any, server: ServerProcess, api: Api, topic_name: str
) -> None:
    """docs/spark.md says so: a reader who bounds a query over a view by WITH would get too much."""
    api.fill(topic_name, 4)
    view = f"view_{abs(hash(topic_name))}"
    given = f"url '{server.url}', topic '{topic_name}', token 'secret-0123456789'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING topics OPTIONS ({given}, endingOffsets '{{\"{topic_name}\": 3}}')")
    try:
        assert spark.sql(f"SELECT count(*) AS n FROM {view}").first().n == 3
        assert spark.sql(f"SELECT count(*) AS n FROM {view} WITH (startingOffsets = 'latest')").first().n == 3
    finally:
        spark.catalog.dropTempView(view)


def test_the_first_minutes_of_the_page_run_as_they_stand(
    spark: Any, server: ServerProcess, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPARK-1: the records and the Python of docs/spark.md up to the plot, and the SQL of its transform."""
    page = DOC.read_text(encoding="utf-8")
    api.remove("clicks")
    api.write("clicks", *json.loads(page.partition(" -d '")[2].partition("'\n")[0])["records"])
    block = page.partition("```python\n")[2].partition("```")[0].replace("http://127.0.0.1:4000", server.url)
    code, plot, _ = block.partition(".plot.bar")
    assert plot, "the plot needs matplotlib, which is not among the tools"
    shown: dict[str, Any] = {}
    exec(compile(f"{code}\n", str(DOC), "exec"), shown)
    assert "|clicks|  1|" in capsys.readouterr().out
    assert sorted(map(tuple, shown["pages"].collect())) == [("/", 1), ("/buy", 2)]
    per_minute = page.partition("```sql\n")[2].partition("```")[0]
    assert sorted((row.page, row.n) for row in spark.sql(per_minute).collect()) == [("/", 1), ("/buy", 2)]
    spark.catalog.dropTempView("clicks")


def test_columns_are_chosen_by_option_or_by_schema(
    spark: Any, load: Reader, server: ServerProcess, api: Api, topic_name: str
) -> None:
    """Python sources get no column pruning, therefore the user prunes."""
    api.fill(topic_name, 3, tag="t")
    assert load(columns="seq,tag").columns == ["seq", "tag"]
    assert [tuple(row) for row in load(columns="tag,seq").orderBy("seq").collect()] == [("t", 1), ("t", 2), ("t", 3)]
    own = spark.read.format("topics").schema("data string, seq bigint")
    assert own.options(url=server.url, topic=topic_name).load().orderBy("seq").first() == ("1", 1)


def test_min_partitions_split_by_seq_and_lose_nothing(load: Reader, api: Api, topic_name: str) -> None:
    for _ in range(5):
        api.fill(topic_name, 301)
    frame = load(minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    assert [row.seq for row in frame.select("seq").orderBy("seq").collect()] == list(range(1, 1506))


def test_deleted_records_are_silent_and_evicted_ones_are_not(load: Reader, api: Api, topic_name: str) -> None:
    """SPARK-7: only eviction is loss, in Spark too."""
    api.put(topic_name, cap_records=6)
    api.write(topic_name, *({"data": n, "tag": "gone" if n % 2 else "kept"} for n in range(1, 11)))
    api.erase(topic_name, match="gone")
    assert sorted(row.seq for row in load().collect()) == [6, 8, 10]
    assert sorted(row.seq for row in load(startingOffsets={topic_name: 5}).collect()) == [6, 8, 10]
    with pytest.raises(Exception, match=rf'topic "{topic_name}" lost the records 3 to 5 \(reason: cap\)'):
        load(startingOffsets={topic_name: 2}).collect()
    assert sorted(row.seq for row in load(startingOffsets={topic_name: 2}, failOnDataLoss=False).collect()) == [
        6,
        8,
        10,
    ]


def test_each_gap_is_a_row_where_tombstones_are_included(load: Reader, api: Api, topic_name: str) -> None:
    api.put(topic_name, cap_records=2)
    api.fill(topic_name, 5)
    rows = load(startingOffsets="beginning", failOnDataLoss=False, includeTombstones=True).collect()
    (gap,) = [row for row in rows if row.tombstone is not None]
    assert tuple(gap.tombstone) == (1, 3, "cap", 3)
    assert (gap.topic, gap.seq, gap.data) == (topic_name, None, None)
    assert sorted(row.seq for row in rows if row.tombstone is None) == [4, 5]


def test_a_gap_that_opens_after_planning_stops_the_query_or_becomes_a_row(
    server: ServerProcess, api: Api, topic_name: str
) -> None:
    """A task meets what happened since the read was planned: eviction, deletion, a new topic of the same name."""
    import pyarrow as pa

    from topics.spark import columns
    from topics.spark.errors import DataLoss
    from topics.spark.options import ReadOptions
    from topics.spark.scan import Range, RangeReader

    api.fill(topic_name, 10)
    planned = Range(topic_name, epoch(api, topic_name), 0, 10)
    schema = pa.schema([(name, columns.TYPES[name]) for name in ("seq", "tombstone")])

    def read(**options: str) -> list[tuple[Any, ...]]:
        given = ReadOptions({"url": server.url, "topic": topic_name, **options}, streaming=False)
        batches = RangeReader(given, schema).read(planned)
        return [(row["seq"], row["tombstone"]) for batch in batches for row in batch.to_pylist()]

    def gap(first: int, last: int, reason: str) -> tuple[None, dict[str, Any]]:
        missed = last - first + 1
        return None, {"gap_from": first, "gap_to": last, "reason": reason, "missed_estimate": missed}

    assert read() == [(seq, None) for seq in range(1, 11)]
    api.put(topic_name, cap_records=4)
    with pytest.raises(DataLoss, match="1 to 6"):
        read()
    assert read(failOnDataLoss="false") == [(7, None), (8, None), (9, None), (10, None), gap(1, 6, "cap")]
    api.remove(topic_name)
    with pytest.raises(DataLoss, match="topic_deleted"):
        read()
    api.fill(topic_name, 20)
    with pytest.raises(DataLoss, match="recreated"):
        read()
    assert read(failOnDataLoss="false") == [gap(1, 10, "recreated")]


def test_tags_and_nodes_are_chosen_by_options(load: Reader, api: Api, topic_name: str) -> None:
    api.write(topic_name, *({"data": n, "tag": f"t{n % 4}", "node": f"n{n % 2}"} for n in range(1, 41)))
    api.write(topic_name, {"data": 41}, {"data": 42, "tag": "a,b"})
    assert sorted(row.seq for row in load(tags="t1, t2").collect()) == [n for n in range(1, 41) if n % 4 in (1, 2)]
    both = load(tags="t1,t2", nodes="n1", columns="seq")
    assert sorted(row.seq for row in both.collect()) == [n for n in range(1, 41) if n % 4 == 1]
    assert [row.seq for row in load(tags='["a,b"]').collect()] == [42]
    assert load(nodes="none").count() == 0


def test_one_data_frame_serves_many_queries(spark: Any, load: Reader, api: Api, topic_name: str) -> None:
    """SPARK-13: Spark keeps what one query pushed down for the next one, so nothing is ever pushed down."""
    api.fill(topic_name, 50)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load()
        assert [frame.filter("seq = 5").count(), frame.count(), frame.filter("seq > 5").count()] == [1, 50, 45]
        assert frame.filter("seq < 3").union(frame.filter("seq > 40")).count() == 12
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match='option "pushFilters" is "true": filters cannot be pushed down'):
        load(pushFilters=True)


def test_the_key_appears_in_no_plan(spark: Any, server: ServerProcess, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 1)
    frame = spark.read.format("topics").options(url=server.url, topic=topic_name, token="s3cret-key-0123456789").load()
    plans = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().executedPlan().treeString()
    assert "s3cret" not in plans
    assert "s3cret" not in repr(frame)
