"""Topics as Spark streams."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api, until
from tests.harness.spark import Fuse, Streams
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark


def seqs(rows: list[Any]) -> list[int]:
    return [row.seq for row in rows]


def test_a_stream_goes_on_where_its_checkpoint_ends(streams: Streams, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 5)
    assert seqs(streams.run()) == [1, 2, 3, 4, 5]
    assert streams.run() == []
    api.fill(topic_name, 2)
    assert seqs(streams.run()) == [6, 7]


def test_admission_control_bounds_a_batch_and_loses_nothing(streams: Streams, api: Api, topic_name: str) -> None:
    """`maxOffsetsPerTrigger`, shared among the topics by what each has waiting."""
    a, b = f"{topic_name}.a", f"{topic_name}.b"
    api.fill(a, 30)
    api.fill(b, 10)
    rows = streams.run(topicPrefix=topic_name, maxOffsetsPerTrigger=20)
    assert sorted((row.topic, row.seq) for row in rows) == [(a, n) for n in range(1, 31)] + [
        (b, n) for n in range(1, 11)
    ]
    sizes = [len(batch) for batch in streams.batches]
    assert max(sizes) <= 20
    assert len(sizes) >= 2
    first = streams.batches[0]
    assert sum(row.topic == a for row in first) == 15
    assert sum(row.topic == b for row in first) == 5


def test_starting_offsets_apply_to_a_query_without_checkpoint(streams: Streams, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 5)
    assert seqs(streams.run(startingOffsets={topic_name: 3})) == [4, 5]
    api.fill(topic_name, 1)
    assert seqs(streams.run(startingOffsets={topic_name: 0})) == [6]


def test_a_new_topic_with_the_prefix_joins_a_running_stream(
    streams: Streams, api: Api, topic_name: str, tmp_path: Path
) -> None:
    seen: list[tuple[str, int]] = []
    api.fill(f"{topic_name}.a", 2)
    query = (
        streams.frame(topicPrefix=f"{topic_name}.", startingOffsets="latest")
        .writeStream.foreachBatch(lambda frame, _: seen.extend((row.topic, row.seq) for row in frame.collect()))
        .option("checkpointLocation", str(streams.checkpoint))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until(lambda: query.lastProgress is not None or query.status["message"].startswith("Waiting"), "it runs", 60)
        api.fill(f"{topic_name}.new", 3)
        until(lambda: len(seen) == 3, "the records of the new topic arrive", 60)
    finally:
        query.stop()
    assert sorted(seen) == [(f"{topic_name}.new", n) for n in (1, 2, 3)]


def test_an_evicted_range_stops_a_stream_or_becomes_a_row(streams: Streams, api: Api, topic_name: str) -> None:
    """No silent loss: the query names topic, range and reason."""
    api.put(topic_name, cap_records=5)
    api.fill(topic_name, 5)
    assert len(streams.run()) == 5
    api.fill(topic_name, 9)
    with pytest.raises(Exception, match=rf'topic "{topic_name}" lost the records 6 to 9 \(reason: cap\)'):
        streams.run()
    rows = streams.run(failOnDataLoss=False)
    assert seqs(rows) == [10, 11, 12, 13, 14]
    assert streams.run(failOnDataLoss=False) == []


def test_tombstone_rows_in_a_stream(streams: Streams, api: Api, topic_name: str) -> None:
    api.put(topic_name, cap_records=2)
    api.fill(topic_name, 6)
    rows = streams.run(startingOffsets="beginning", failOnDataLoss=False, includeTombstones=True)
    assert [tuple(row.tombstone) for row in rows if row.tombstone] == [(1, 4, "cap", 4)]
    assert [row.seq for row in rows if row.tombstone is None] == [5, 6]


def test_a_topic_recreated_between_two_batches_is_seen_by_its_epoch(
    streams: Streams, api: Api, topic_name: str
) -> None:
    """SPARK-8: also where the new topic already reaches further than the old cursor."""
    api.fill(topic_name, 3)
    assert len(streams.run()) == 3
    api.remove(topic_name)
    with pytest.raises(Exception, match=rf'topic "{topic_name}" was deleted after the query had read it to seq 3'):
        streams.run()
    api.fill(topic_name, 8)
    with pytest.raises(Exception, match=rf'topic "{topic_name}" was deleted and recreated'):
        streams.run()
    rows = streams.run(failOnDataLoss=False, includeTombstones=True)
    assert [row.tombstone.reason for row in rows if row.tombstone] == ["recreated"]
    assert sorted(row.seq for row in rows if row.tombstone is None) == list(range(1, 9))


def test_a_checkpoint_of_another_topic_is_refused(streams: Streams, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 1)
    streams.run()
    streams.topic = f"{topic_name}.other"
    api.fill(streams.topic, 1)
    with pytest.raises(Exception, match="the checkpoint holds offsets of topic") as failure:
        streams.run()
    assert f'option "topic" is "{streams.topic}"' in str(failure.value)


def test_an_end_makes_no_sense_for_a_stream(streams: Streams, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 1)
    with pytest.raises(Exception, match='option "endingOffsets" is "latest": a stream has no end'):
        streams.run(endingOffsets="latest")


def test_a_paused_stream_finishes_its_batch_and_takes_no_more(
    streams: Streams, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """What a pipeline uses to stop between two batches."""
    api.fill(topic_name, 2)
    pause = tmp_path / "pause"
    pause.touch()
    assert streams.run(pauseFile=pause) == []
    pause.unlink()
    assert len(streams.run(pauseFile=pause)) == 2


def test_a_stream_survives_a_restart_of_the_server(
    spark: Any, start_server: Any, topic_name: str, tmp_path: Path
) -> None:
    """Retries with backoff while the server is away, then a clear failure."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server: ServerProcess = start_server(port=port)
    api = Api(server.host, server.port)
    api.fill(topic_name, 50)
    streams = Streams(spark, server.url, topic_name, tmp_path)
    server.kill()
    back = threading.Timer(1.0, server.start)
    back.start()
    assert len(streams.run()) == 50
    back.join()
    server.kill()
    with pytest.raises(Exception, match=r"cannot be reached: Connection refused; gave up after 0\.3 s of retries"):
        streams.run(retryTimeoutMs=300)
    server.start()
    api.fill(topic_name, 1)
    assert seqs(streams.run()) == [51]
    api.close()


def test_a_head_that_went_back_stops_a_stream_or_starts_it_again(
    spark: Any, start_server: Any, topic_name: str, tmp_path: Path
) -> None:
    """SPARK-8: a cursor above the head reads from the beginning again, because its seqs were given out anew."""
    server: ServerProcess = start_server()
    api = Api(server.host, server.port)
    api.put(topic_name, durability="ephemeral")
    api.fill(topic_name, 9)
    streams = Streams(spark, server.url, topic_name, tmp_path)
    assert len(streams.run()) == 9
    server.kill()
    server.start()
    api.close()
    api = Api(server.host, server.port)
    streams.url = server.url
    api.fill(topic_name, 4)
    assert api.state(topic_name)["head_seq"] == 4
    with pytest.raises(Exception, match=rf'topic "{topic_name}" lost the records 5 to 9 \(reason: head_went_back\)'):
        streams.run()
    rows = streams.run(failOnDataLoss=False, includeTombstones=True, maxOffsetsPerTrigger=3)
    assert [tuple(row.tombstone)[:3] for row in rows if row.tombstone] == [(5, 9, "head_went_back")]
    assert sorted(row.seq for row in rows if row.tombstone is None) == [1, 2, 3, 4]
    api.fill(topic_name, 7)
    assert sorted(seqs(streams.run())) == [5, 6, 7, 8, 9, 10, 11]
    api.close()


def test_a_server_restarted_in_the_middle_of_a_batch_costs_nothing(
    spark: Any, start_server: Any, topic_name: str, tmp_path: Path
) -> None:
    """The answer that broke off is asked for again, once the server is back."""
    server: ServerProcess = start_server()
    api = Api(server.host, server.port)
    for _ in range(25):
        api.write(topic_name, *({"data": "x" * 1000} for _ in range(200)))
    api.close()
    fuse = Fuse(server, 2_500_000)
    streams = Streams(spark, fuse.url, topic_name, tmp_path)
    rows = streams.run(columns="seq,data")
    assert fuse.blown.is_set()
    assert sorted(seqs(rows)) == list(range(1, 5001))
    assert all(len(row.data) == 1002 for row in rows)
    fuse.close()
