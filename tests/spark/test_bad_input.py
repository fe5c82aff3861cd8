"""What a user gets wrong: each answer names the option and its value, and none is a bare stack trace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.api import Api
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

READER_KEY = "reader-0123456789abcdef"
WRITER_KEY = "writer-0123456789abcdef"


def fails(action: Any) -> str:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - Spark has many classes for them
        action()
    said = str(failure.value)
    assert "Traceback" not in said, said
    return said


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"url": None}, ['option "url" is missing']),
        ({"url": "ftp://x"}, ['option "url" is "ftp://x"']),
        ({"url": "http://u:hidden@x"}, ['option "url" holds a user or password']),
        ({"url": "http://127.0.0.1:1"}, ["http://127.0.0.1:1", 'option "url"', "Connection refused"]),
        ({"url": "http://no-such-host.invalid"}, ['option "url"', "no-such-host.invalid"]),
        ({"topic": None}, ['exactly one of the options "topic", "topics", "topicPrefix" and "subscribePattern"']),
        ({"topics": "a,b"}, ["exactly one of", '"topic" and "topics" are set']),
        ({"topic": "no-such-topic"}, ['topic "no-such-topic"', "does not exist"]),
        ({"topic": "no/such"}, ["no/such"]),
        ({"topic": None, "topicPrefix": "nothing-has-this."}, ['option "topicPrefix" is "nothing-has-this."']),
        ({"topic": None, "subscribePattern": "nothing-[0-9]+"}, ['option "subscribePattern" is "nothing-[0-9]+"']),
        ({"topic": None, "subscribePattern": "a("}, ['option "subscribePattern" is "a("', "not a regular expression"]),
        ({"tags": "[1]"}, ['option "tags" is "[1]"']),
        ({"startingOffsets": "{bad"}, ['option "startingOffsets" is "{bad"']),
        ({"startingOffsets": '{"other": 1}'}, ['option "startingOffsets"', 'names "other"']),
        ({"startingOffsets": '{"TOPIC": -7}'}, ['option "startingOffsets"', "whole number from 0"]),
        ({"startingOffsets": '{"TOPIC": 999}'}, ['option "startingOffsets"', "999", "beyond the head", "3"]),
        ({"endingOffsets": '{"TOPIC": 999}'}, ['option "endingOffsets"', "999", "beyond the head"]),
        ({"endingOffsets": "earliest"}, ['option "endingOffsets" is "earliest"']),
        ({"startingTimestamp": "yesterday"}, ['option "startingTimestamp" is "yesterday"']),
        ({"failOnDataLoss": "perhaps"}, ['option "failOnDataLoss" is "perhaps"']),
        ({"minPartitions": "0"}, ['option "minPartitions" is "0"']),
        ({"columns": "seq,price"}, ['option "columns" is "seq,price"', '"price"']),
        ({"columns": "seq,tag,seq"}, ['option "columns" is "seq,tag,seq"', "twice"]),
        ({"errorTopic": "bad-rows"}, ['option "errorTopic" is "bad-rows"', "option of writes"]),
        ({"columns": "tombstone"}, ['option "columns"', "includeTombstones"]),
        ({"startingOffset": "latest"}, ['no option "startingoffset"', 'did you mean "startingOffsets"']),
        ({"startingOffsets": '{"TOPIC": 3}', "endingOffsets": '{"TOPIC": 1}'}, ['option "endingOffsets"', "before"]),
        ({"startingTimestamp": "9", "endingTimestamp": "5"}, ['option "endingTimestamp" is "5"', "9"]),
    ],
)
def test_a_bad_read_option_is_named_with_its_value(
    spark: Any, server: ServerProcess, api: Api, topic_name: str, options: dict[str, str | None], parts: list[str]
) -> None:
    api.fill(topic_name, 3)
    given = {"url": server.url, "topic": topic_name, "retryTimeoutMs": "200", **options}
    chosen = {name: value.replace("TOPIC", topic_name) for name, value in given.items() if value is not None}
    said = fails(lambda: spark.read.format("topics").options(**chosen).load().collect())
    for part in parts:
        assert part in said, said
    assert "hidden" not in said


def test_keys_that_are_missing_wrong_or_too_weak(spark: Any, start_server: Any) -> None:
    server: ServerProcess = start_server(api_keys=f"{READER_KEY}:read,{WRITER_KEY}:write")
    writer = Api(server.host, server.port, WRITER_KEY)
    writer.fill("orders", 2)

    def read(**options: str) -> Any:
        return spark.read.format("topics").options(url=server.url, topic="orders", **options).load()

    assert read(token=READER_KEY).count() == 2
    assert 'option "token" is not set' in fails(lambda: read().count())
    said = fails(lambda: read(token="wrong-0123456789abcdef").count())
    assert 'option "token"' in said
    assert "does not know the key" in said
    assert "wrong-0123456789" not in said
    weak = fails(lambda: read(token=WRITER_KEY).count())
    assert 'option "token": the key may not do this' in weak
    rows = spark.sql("SELECT '1' AS data")
    write = rows.write.format("topics").mode("append").options(url=server.url, topic="orders", token=READER_KEY)
    assert 'option "token": the key may not do this' in fails(write.save)
    writer.close()


def test_an_address_that_is_not_a_topics_server_is_reported(spark: Any) -> None:
    import http.server
    import threading

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"nothing here")

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_address[1]}"
        said = fails(lambda: spark.read.format("topics").options(url=url, topic="a").load().count())
        other.shutdown()
        thread.join()
    assert 'option "url"' in said
    assert "is not a topics server" in said


@pytest.mark.parametrize(
    ("rows", "options", "parts"),
    [
        ("'{x' AS data", {}, ["row 1 of partition 0", "data is not JSON"]),
        ("CAST(NULL AS string) AS data", {}, ["row 1 of partition 0", "data is null"]),
        ("'1' AS data, repeat('x', 300) AS tag", {}, ["row 1", "tag has 300 bytes; the limit is 256"]),
        ("'1' AS data, 'no/name' AS topic", {}, ["row 1", "no/name"]),
        ("'1' AS data, map('a', CAST(NULL AS string)) AS meta", {}, ["row 1", 'meta "a" is not text']),
        ("'1' AS data, 1 AS price", {}, ['column "price"']),
        ("parse_json('1') AS data", {}, ['column "data" to write is a variant', "to_json"]),
        ("'1' AS data, 5 AS tag", {}, ['column "tag" to write is a int', "string"]),
        ("'1' AS data, '{}' AS meta", {}, ['column "meta" to write is a string', "map<string,string>"]),
        ("'1' AS data", {"errorTopics": "x"}, ['no option "errortopics"', 'did you mean "errorTopic"']),
        ("1 AS price", {}, ['no column "data"']),
        ("'1' AS data", {"topic": None}, ["name the topic to write to"]),
        ("'1' AS data", {"txnId": "t"}, ['option "txnId" is "t"', "stagingDir"]),
        (
            "'1' AS data",
            {"stagingDir": "hdfs://host/x"},
            ['option "stagingDir" is "hdfs://host/x"', "s3://bucket/staging"],
        ),
        ("'1' AS data", {"url": "http://127.0.0.1:1"}, ["http://127.0.0.1:1", "Connection refused"]),
    ],
)
def test_a_bad_write_is_refused_by_row_and_reason(
    spark: Any, server: ServerProcess, topic_name: str, rows: str, options: dict[str, str | None], parts: list[str]
) -> None:
    given = {"url": server.url, "topic": topic_name, "retryTimeoutMs": "200", **options}
    chosen = {name: value for name, value in given.items() if value is not None}
    frame = spark.sql(f"SELECT {rows}")
    said = fails(frame.write.format("topics").mode("append").options(**chosen).save)
    for part in parts:
        assert part in said, said


def test_a_write_without_a_mode_is_told_to_append(spark: Any, server: ServerProcess, topic_name: str) -> None:
    """Spark refuses its own default, "error if exists", before it asks the source, and names the modes there are."""
    write = spark.sql("SELECT '1' AS data").write.format("topics").options(url=server.url, topic=topic_name)
    assert '"Append"' in fails(write.save)


def test_overwrite_is_refused(spark: Any, server: ServerProcess, topic_name: str) -> None:
    frame = spark.sql("SELECT '1' AS data")
    save = frame.write.format("topics").mode("overwrite").options(url=server.url, topic=topic_name).save
    assert 'mode "overwrite" is not possible' in fails(save)
