"""What Spark computes becomes records, each once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from tests.harness.spark import Fuse, Streams, finish, records
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark


def save(frame: Any, server: ServerProcess, **options: Any) -> None:
    frame.write.format("topics").mode("append").options(url=server.url, **options).save()


def test_columns_become_the_fields_of_a_record(spark: Any, server: ServerProcess, api: Api, topic_name: str) -> None:
    frame = spark.sql(
        """SELECT '{"a": [1, "ü"]}' AS data, 'tag' AS tag, 'node' AS node, map('k', 'v') AS meta
           UNION ALL SELECT 'null', NULL, NULL, NULL"""
    ).coalesce(1)
    save(frame, server, topic=topic_name)
    first, second = records(api, topic_name)
    assert (first["data"], first["$tag"], first["$node"], first["meta"]) == ({"a": [1, "ü"]}, "tag", "node", {"k": "v"})
    assert second["data"] is None
    assert not {"$tag", "$node", "meta"} & set(second)


def test_a_struct_is_rendered_as_json(spark: Any, server: ServerProcess, api: Api, topic_name: str) -> None:
    sql = """SELECT struct(1 AS i, 'x"y' AS s, array(1.5D) AS f, map('k', true) AS m, CAST(NULL AS int) AS n,
             timestamp'2024-01-02 03:04:05' AS t) AS data"""
    save(spark.sql(sql), server, topic=topic_name)
    (record,) = records(api, topic_name)
    expected = {"i": 1, "s": 'x"y', "f": [1.5], "m": {"k": True}, "n": None, "t": "2024-01-02T03:04:05Z"}
    assert record["data"] == expected


def test_rows_name_their_topics_and_keep_their_order(
    spark: Any, server: ServerProcess, api: Api, topic_name: str
) -> None:
    frame = spark.range(5000).selectExpr(f"concat('{topic_name}.', id % 3) AS topic", "CAST(id AS string) AS data")
    save(frame.orderBy("data").orderBy(frame.data.cast("bigint")), server)
    for part in range(3):
        found = [record["data"] for record in records(api, f"{topic_name}.{part}")]
        assert found == [n for n in range(5000) if n % 3 == part]


def test_bad_rows_go_to_the_error_topic(spark: Any, server: ServerProcess, api: Api, topic_name: str) -> None:
    frame = spark.sql("SELECT CASE WHEN id = 1 THEN '{bad' ELSE CAST(id AS string) END AS data FROM range(0, 3, 1, 1)")
    save(frame, server, topic=topic_name, errorTopic=f"{topic_name}.errors")
    assert [record["data"] for record in records(api, topic_name)] == [0, 2]
    (refused,) = records(api, f"{topic_name}.errors")
    assert refused["data"]["data"] == "{bad"
    assert refused["data"]["row"] == 2
    assert refused["data"]["topic"] == topic_name
    assert "not JSON" in refused["data"]["reason"]


def test_one_bad_row_publishes_nothing_of_its_batch(
    spark: Any, server: ServerProcess, api: Api, topic_name: str
) -> None:
    frame = spark.sql("SELECT CASE WHEN id = 99 THEN '{bad' ELSE CAST(id AS string) END AS data FROM range(100)")
    with pytest.raises(Exception, match="data is not JSON"):
        save(frame, server, topic=topic_name)
    assert not api.exists(topic_name)


def test_a_repeated_transaction_writes_nothing(
    spark: Any, server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """Batch writes are exactly-once by `txnId`, although the repetition yields other rows."""
    options = {"topic": topic_name, "txnId": topic_name, "stagingDir": str(tmp_path)}
    save(spark.sql("SELECT CAST(id AS string) AS data FROM range(0, 10, 1, 2)"), server, **options)
    save(spark.sql("SELECT CAST(id AS string) AS data FROM range(0, 30, 1, 3)"), server, **options)
    assert [record["data"] for record in records(api, topic_name)] == list(range(10))
    assert not list(tmp_path.rglob("*.staged"))


class Copy:
    """A stream from the test's topic to another one."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.target = f"{streams.topic}.copy"

    def run(self, sql: str = "data, tag, topic AS source", **options: Any) -> None:
        rows = self.streams.frame(maxOffsetsPerTrigger=10).selectExpr("data", "tag", "map('seq', string(seq)) AS meta")
        if sql == "reversed":
            rows = rows.repartition(3)
        query = (
            rows.writeStream.format("topics")
            .options(url=self.streams.url, topic=self.target, **options)
            .option("checkpointLocation", str(self.streams.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)

    def copied(self, api: Api) -> list[int]:
        return [record["data"] for record in records(api, self.target)]


def test_a_stream_copies_each_record_once_and_in_order(streams: Streams, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 25, tag="t")
    copy = Copy(streams)
    copy.run()
    assert copy.copied(api) == list(range(1, 26))
    first = records(api, copy.target)[0]
    assert (first["$tag"], first["meta"]) == ("t", {"seq": "1"})
    staged = sorted(path.name for path in (streams.checkpoint / "topics-staging").glob("*/*"))
    assert staged == ["000000000002"], "only the last epoch is kept"


def test_a_replayed_batch_is_dropped_although_its_rows_come_in_another_order(
    streams: Streams, api: Api, topic_name: str
) -> None:
    """Spark replays a batch whose commit it did not write: the first manifest decides, and the server has it all."""
    api.fill(topic_name, 25)
    copy = Copy(streams)
    copy.run()
    for left in (streams.checkpoint / "commits").glob("*2*"):
        left.unlink()
    copy.run("reversed")
    assert copy.copied(api) == list(range(1, 26))
    api.fill(topic_name, 5)
    copy.run()
    assert copy.copied(api) == [*range(1, 26), *range(1, 6)]


def test_a_batch_that_was_staged_but_not_published_is_published_from_its_first_manifest(
    spark: Any, start_server: Any, streams: Streams, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """The crash between manifest and publish: source and sink are two servers, and the sink is away."""
    api.fill(topic_name, 8)
    sink: ServerProcess = start_server()
    away = Copy(streams)
    url, streams_url = sink.url, streams.url
    rows = streams.frame().selectExpr("data")

    def run(target_url: str, shuffled: bool) -> None:
        chosen = rows.repartition(3) if shuffled else rows
        query = (
            chosen.writeStream.format("topics")
            .options(url=target_url, topic="sink", retryTimeoutMs="100")
            .option("checkpointLocation", str(streams.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)

    with pytest.raises(Exception, match="cannot be reached"):
        run("http://127.0.0.1:1", shuffled=True)
    manifest = next(streams.checkpoint.rglob("manifest.json"))
    decided = manifest.read_text()
    run(url, shuffled=False)
    assert manifest.read_text() == decided
    other = Api(sink.host, sink.port)
    assert sorted(record["data"] for record in records(other, "sink")) == list(range(1, 9))
    other.close()
    assert away.streams.url == streams_url


def test_a_server_killed_while_a_batch_is_published_has_each_record_once(
    spark: Any, start_server: Any, topic_name: str
) -> None:
    """The write whose answer was lost is sent again, and the server knows it by its producer seq."""
    server: ServerProcess = start_server()
    fuse = Fuse(server, 1_500)
    frame = spark.range(0, 30_000, 1, 2).selectExpr("CAST(id AS string) AS data")
    frame.write.format("topics").mode("append").options(url=fuse.url, topic=topic_name).save()
    assert fuse.blown.is_set()
    api = Api(server.host, server.port)
    assert [record["data"] for record in records(api, topic_name)] == list(range(30_000))
    api.close()
    fuse.close()


def test_days_between_crash_and_restart_make_no_record_twice(
    spark: Any, start_server: Any, topic_name: str, tmp_path: Path
) -> None:
    """What is known of a producer is bound to no window of time, and outlives a restart of the server."""
    server: ServerProcess = start_server()
    api = Api(server.host, server.port)
    streams = Streams(spark, server.url, topic_name, tmp_path)
    copy = Copy(streams)
    api.put(copy.target, idempotency_window_ms=1)
    api.fill(topic_name, 25)
    copy.run()
    api.close()
    for left in (streams.checkpoint / "commits").glob("*2*"):
        left.unlink()
    server.stop()
    server.start()
    streams.url = server.url
    api = Api(server.host, server.port)
    copy.run("reversed")
    assert copy.copied(api) == list(range(1, 26))
    api.close()


def test_the_first_manifest_wins_and_is_published_once(
    server: ServerProcess, api: Api, tmp_path: Path, topic_name: str
) -> None:
    """Stage, decide and publish without Spark: two attempts, two drivers, days apart."""
    from topics.spark.client import Client
    from topics.spark.depot import depot_of
    from topics.spark.options import WriteOptions
    from topics.spark.rows import Rendered
    from topics.spark.stage import Stage

    client = Client(WriteOptions({"url": server.url, "topic": topic_name}).address)
    stage = Stage(depot_of("stagingDir", tmp_path), f"spark-{topic_name}", 3)

    def attempt(*values: int) -> Any:
        return stage.write([Rendered.of(topic_name, b'{"data":%d}' % value) for value in values], 0)

    first, second = attempt(1, 2, 3), attempt(3, 1, 2)
    assert stage.decide([first]) == [first]
    assert stage.decide([second]) == [first]
    assert stage.publish(stage.decide([second]), client) == (3, 0)
    assert stage.publish(stage.decide([attempt(9)]), client) == (0, 3)
    assert [record["data"] for record in records(api, topic_name)] == [1, 2, 3]
    earlier = Stage(depot_of("stagingDir", tmp_path), f"spark-{topic_name}", 2)
    earlier.publish(earlier.decide([earlier.write([Rendered.of(topic_name, b'{"data":7}')], 0)]), client)
    assert [record["data"] for record in records(api, topic_name)] == [1, 2, 3], "a late driver of an earlier epoch"
    client.close()


def test_a_staged_file_that_is_damaged_or_elsewhere_is_reported(server: ServerProcess, tmp_path: Path) -> None:
    from topics.spark.client import Client
    from topics.spark.depot import depot_of
    from topics.spark.errors import SourceError
    from topics.spark.options import WriteOptions
    from topics.spark.rows import Rendered
    from topics.spark.stage import Stage

    client = Client(WriteOptions({"url": server.url, "topic": "never"}).address)
    stage = Stage(depot_of("stagingDir", tmp_path), "p", 0)
    file = stage.write([Rendered.of("never", b'{"data":1}')], 0)
    path = tmp_path / "p" / "000000000000" / str(file.name)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(SourceError, match="is damaged"):
        stage.publish([file], client)
    shutil.rmtree(path.parent)
    with pytest.raises(SourceError, match='set the option "stagingDir"'):
        stage.publish([file], client)
    assert json.loads(server.request("GET", "/v0/topics?prefix=never").body)["topics"] == []
    client.close()
