"""One query over several servers, each with topics of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.api import Api
from tests.harness.spark import Archives, Streams, finish
from topics.spark.errors import SourceError
from topics.spark.options import GivenOptions, ReadOptions, WriteOptions, addresses
from topics.spark.servers import Servers
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

EAST, WEST = "key-of-the-east-0123456789", "key-of-the-west-0123456789"


class Pair(NamedTuple):
    """Two servers, each with a key of its own."""

    east: Api
    west: Api
    options: dict[str, str]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ServerProcess(api_keys=EAST) as east, ServerProcess(api_keys=WEST) as west:
        apis = Api(east.host, east.port, EAST), Api(west.host, west.port, WEST)
        yield Pair(*apis, {"url": f"{east.url}, {west.url}", "token": f"{EAST},{WEST}"})
        for api in apis:
            api.close()


def of(rows: list[Any]) -> list[tuple[str, int]]:
    return sorted((row.topic, row.seq) for row in rows)


def expected(**counts: int) -> list[tuple[str, int]]:
    return sorted((topic.replace("_", "."), seq) for topic, n in counts.items() for seq in range(1, n + 1))


def test_one_batch_reads_the_topics_of_all_servers(spark: Any, pair: Pair) -> None:
    """SPARK-33: by name, by prefix and by pattern; what is not there is not there on any of them."""
    pair.east.fill("batch.a", 3)
    pair.west.fill("batch.b", 5)

    def load(**options: str) -> Any:
        return spark.read.format("topics").options(**pair.options, **options).load()

    both = expected(batch_a=3, batch_b=5)
    assert of(load(topics="batch.b,batch.a").collect()) == both
    assert of(load(topicPrefix="batch.", minPartitions="4").collect()) == both
    assert of(load(subscribePattern=r"batch\.[ab]").collect()) == both
    ends = json.dumps({"batch.b": 2})
    assert of(load(topicPrefix="batch.", endingOffsets=ends).collect()) == expected(batch_a=3, batch_b=2)
    with pytest.raises(Exception, match=r'topic "batch.c" .* exists on none of http.*, http'):
        load(topic="batch.c").collect()


def test_a_topic_that_two_servers_have_is_refused(spark: Any, pair: Pair) -> None:
    """SPARK-33: their seqs are not those of one history."""
    for api in (pair.east, pair.west):
        api.fill("twice.a", 1)
    pair.east.fill("once.a", 2)
    one = spark.read.format("topics").options(**pair.options, subscribePattern="once.*").load()
    assert of(one.collect()) == expected(once_a=2), "what is not read may be on both"
    for options in ({"topic": "twice.a"}, {"topicPrefix": "twice."}):
        with pytest.raises(Exception, match=r'topic "twice.a" is on http\S+ and http\S+: .* one server'):
            spark.read.format("topics").options(**pair.options, **options).load().collect()


def test_a_stream_over_servers_keeps_the_place_of_each(spark: Any, pair: Pair, topic_name: str, tmp_path: Path) -> None:
    """SPARK-34: over restarts, with topics that join; and a topic that moved to another server is not taken for it."""
    pair.east.fill("flow.a", 4)
    pair.west.fill("flow.b", 6)
    streams = Streams(spark, pair.options["url"], topic_name, tmp_path)
    given = {"topicPrefix": "flow.", "token": pair.options["token"], "maxOffsetsPerTrigger": 5}
    assert of(streams.run(**given)) == expected(flow_a=4, flow_b=6)
    assert len(streams.batches) >= 2
    kept = json.loads((streams.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    assert [place["server"] for place in kept.values()] == [url.strip() for url in pair.options["url"].split(",")]
    assert {place["epoch"] for place in kept.values()}, "each server counts its own"
    pair.west.fill("flow.b", 1)
    pair.west.fill("flow.c", 2)
    assert of(streams.run(**given)) == [("flow.b", 7), ("flow.c", 1), ("flow.c", 2)]
    pair.east.call("DELETE", "/v0/topics/flow.a").ok()
    pair.west.fill("flow.a", 9)
    with pytest.raises(Exception, match=r'topic "flow.a" was read at http\S+, and is now at http'):
        streams.run(**given)
    streams.url = pair.options["url"].split(",")[1].strip()
    with pytest.raises(Exception, match=r'has read topic "flow.a" at http\S+, which the option "url" does not name'):
        streams.run(**{**given, "token": WEST})


def test_an_archive_of_several_servers(spark: Any, pair: Pair, archives: Archives, tmp_path: Path) -> None:
    """SPARK-34: one lake, each record once, with and without a checkpoint; `table` finds the server of a topic."""
    from topics.spark import table

    pair.east.fill("lake.a", 3)
    pair.west.fill("lake.b", 4)
    archives.source = {**pair.options, "topicPrefix": "lake."}
    archives.run()
    pair.east.fill("lake.a", 2)
    archives.run(checkpoint=tmp_path / "another")
    events = [(row["topic"], row["seq"]) for row in archives.events()]
    assert events == expected(lake_a=5, lake_b=4)
    pair.west.fill("lake.b", 1)
    rows = table(spark, "lake.b", archives.root, **pair.options).collect()
    assert of(rows) == expected(lake_b=5)
    stream = table(spark, "lake.b", archives.root, streaming=True, **pair.options)
    seen: list[Any] = []
    query = stream.writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
    query = query.option("checkpointLocation", str(tmp_path / "stream")).trigger(availableNow=True).start()
    finish(query)
    assert of(seen) == expected(lake_b=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://a,http://b", "token": "k1,k2,k3"}, 'option "token" lists 3 keys for 2 servers'),
        ({"url": "http://a, http://a/"}, 'option "url" is "http://a, http://a/": it names a server twice'),
        ({"url": "http://a,ftp://b"}, 'option "url" is "ftp://b"'),
        ({"url": ","}, 'the option "url" is missing'),
    ],
)
def test_a_list_of_servers_that_is_none_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError) as refused:
        ReadOptions({"topic": "t", **given}, streaming=False)
    assert said in str(refused.value)
    assert "k1" not in str(refused.value)


def test_one_key_is_for_all_servers_and_a_write_is_for_one() -> None:
    one, two = addresses(GivenOptions({"url": "http://a,https://b/x/", "token": "k"}))
    assert (one.url, one.port, one.token) == ("http://a", 80, "k")
    assert (two.url, two.port, two.path, two.token) == ("https://b/x", 443, "/x", "k")
    with pytest.raises(SourceError, match="written to one server"):
        WriteOptions({"topic": "t", "url": "http://a,http://b"})


def test_offsets_that_name_no_server_are_taken_as_before() -> None:
    servers = Servers(addresses(GivenOptions({"url": "http://a"})))
    servers.assign_homes({})
    assert servers.homes(["t"]) == {}
    servers.assign_homes({"t": "http://a"})
    with pytest.raises(SourceError, match="new checkpoint"):
        servers.assign_homes({"t": "http://b"})
