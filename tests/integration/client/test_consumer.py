"""Consumers against a real server, in threads and on asyncio."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.api import Api, StartServer, until
from topics import BadData, Client, RecordsLost, Tombstone
from topics.errors import TopicNotFound
from topics.testing import ServerProcess


def take(consumer: Any, count: int) -> list[Any]:
    """The next items; all but the last one count as handled."""
    return [next(consumer) for _ in range(count)]


@pytest.fixture(params=["topic", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, topic_name: str) -> str | Path:
    """Where the cursors of a test's consumers are kept."""
    return f"{topic_name}.cursors" if request.param == "topic" else tmp_path / "cursors" / "c.json"


@pytest.mark.parametrize("count", [1, 2])
def test_a_consumer_goes_on_where_it_has_got_to(
    client: Any, api: Api, topic_name: str, kept: str | Path, count: int
) -> None:
    """CLIENT-13: with one topic and with several, in a file and in a topic."""
    topics = [f"{topic_name}.{i}" for i in range(count)]
    for topic in topics:
        api.fill(topic, 5)
    with client.consumer("c", topics, cursors=kept) as first:
        items = take(first, 5 * count - 1)
    seen = {(item.topic, item.seq) for item in items[:-1]}
    again = client.consumer("c", topics, cursors=kept)
    rest = take(again, 2)
    assert {(item.topic, item.seq) for item in rest}.isdisjoint(seen)
    assert len(seen | {(item.topic, item.seq) for item in rest}) == 5 * count
    again.commit()
    again.close()


def test_an_item_is_handled_when_the_next_is_asked_for(
    client: Any, api: Api, topic_name: str, kept: str | Path
) -> None:
    """CLIENT-13: what was in hand when a program died comes again."""
    api.fill(topic_name, 3)

    def seqs_of_a_run_that_fails() -> list[int]:
        seen = []

        def handle(item: Any) -> None:
            seen.append(item.seq)
            _ = 1 // (2 - item.seq)

        with client.consumer("c", [topic_name], cursors=kept) as consumer, pytest.raises(ZeroDivisionError):
            consumer.run(handle)
        return seen

    assert seqs_of_a_run_that_fails() == [1, 2]
    assert seqs_of_a_run_that_fails() == [2]


def test_an_item_whose_handler_failed_comes_again_in_the_same_consumer(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-13."""
    api.fill(topic_name, 3)
    seen: list[int] = []

    def handle(item: Any) -> None:
        seen.append(item.seq)
        if seen.count(2) == 1 and item.seq == 2:
            raise RuntimeError
        if item.seq == 3:
            consumer.stop()

    with client.consumer("c", [topic_name], cursors=f"{topic_name}.cursors") as consumer:
        with pytest.raises(RuntimeError):
            consumer.run(handle)
        consumer.run(handle)
    assert seen == [1, 2, 2, 3]


def test_consumers_of_other_names_do_not_meet(client: Any, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 2)
    for name in (f"{topic_name}-a", f"{topic_name}-b"):
        with client.consumer(name, topic_name) as consumer:
            assert [item.seq for item in take(consumer, 2)] == [1, 2]
    # The default place is one topic for all, with one record for each consumer.
    found = [item.data["consumer"] for item in client.topic("topics.consumers").read(match=f"{topic_name}-a")]
    assert found == [f"{topic_name}-a"]


def test_a_consumer_that_is_stopped_can_be_moved(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-13: to its beginning, by deleting its cursors, and anywhere, by writing them."""
    api.fill(topic_name, 5)
    cursors = client.topic(f"{topic_name}.cursors")

    def first_of_a_run() -> int:
        with client.consumer("c", [topic_name], cursors=cursors.name) as consumer:
            return int(take(consumer, 3)[0].seq)

    assert first_of_a_run() == 1
    cursors.delete(match="c")
    assert first_of_a_run() == 1
    cursors.write({"consumer": "c", "cursors": {topic_name: {"seq": 2}}}, tag="c")
    assert first_of_a_run() == 3


def test_a_consumer_may_begin_with_what_is_new(client: Any, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 3)
    consumer = client.consumer("c", [topic_name], start="latest", cursors=f"{topic_name}.cursors")
    writer = threading.Timer(0.3, lambda: api.fill(topic_name, 1))
    writer.start()
    assert next(consumer).seq == 4
    writer.join()
    consumer.close()


def test_cursors_are_committed_while_it_runs(client: Any, api: Api, topic_name: str, tmp_path: Path) -> None:
    """CLIENT-13."""
    api.fill(topic_name, 10)
    file = tmp_path / "c.json"
    consumer = client.consumer("c", [topic_name], cursors=file, commit_ms=0)
    take(consumer, 4)
    assert msgspec.json.decode(file.read_bytes())["cursors"][topic_name]["seq"] == 3
    consumer.close()
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]


def test_lag_is_told_in_records_and_seconds(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-13."""
    api.fill(topic_name, 10)
    consumer = client.consumer("c", [topic_name], cursors=f"{topic_name}.cursors")
    take(consumer, 4)
    lag = consumer.lag()[topic_name]
    assert lag.records == 7
    assert 0 <= lag.seconds < 60
    take(consumer, 6)
    consumer.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_is_raised_or_delivered_once(client: Any, api: Api, topic_name: str, count: int) -> None:
    """CLIENT-13: once in all runs together."""
    topics = [f"{topic_name}.{i}" for i in range(count)]
    for topic in topics:
        api.put(topic, cap_records=2)
        api.fill(topic, 5)
    kept = f"{topic_name}.cursors"
    raising = client.consumer("r", topics, cursors=kept)
    raised, seqs = [], []
    for _ in range(3 * count):
        try:
            seqs.append(next(raising).seq)
        except RecordsLost as lost:
            raised.append((lost.topic, lost.gap_from, lost.gap_to))
    assert sorted(raised) == [(topic, 1, 3) for topic in topics]
    assert sorted(seqs) == sorted([4, 5] * count)
    raising.close()

    gaps = []
    for _ in range(2):
        consumer = client.consumer("y", topics, cursors=kept, on_loss="yield")
        for item in take(consumer, 3 * count - 1 if not gaps else 1):
            if isinstance(item, Tombstone):
                gaps.append((item.topic, item.gap_from, item.gap_to))
        consumer.close()
    assert sorted(gaps) == [(topic, 1, 3) for topic in topics]


@pytest.mark.parametrize("count", [1, 2])
def test_a_topic_that_was_created_anew_is_a_loss(client: Any, api: Api, topic_name: str, count: int) -> None:
    """CLIENT-13: between two runs, and while one runs."""
    topics = [f"{topic_name}.{i}" for i in range(count)]
    kept = f"{topic_name}.cursors"
    for topic in topics:
        api.fill(topic, 3)
    with client.consumer("c", topics, cursors=kept) as consumer:
        take(consumer, 3 * count)
        consumer.commit()
    api.remove(topics[0])
    api.fill(topics[0], 9)
    consumer = client.consumer("c", topics, cursors=kept, on_loss="yield")
    items = take(consumer, 11 if count > 1 else 10)
    gap = next(item for item in items if isinstance(item, Tombstone))
    assert (gap.topic, gap.reason) == (topics[0], "recreated")
    assert [item.seq for item in items if not isinstance(item, Tombstone) and item.topic == topics[0]] == list(
        range(1, 10)
    )
    recreator = threading.Timer(0.2, lambda: (api.remove(topics[0]), api.fill(topics[0], 1)))
    recreator.start()
    again = next(consumer)
    assert isinstance(again, Tombstone)
    assert (again.topic, again.reason) == (topics[0], "recreated")
    assert next(consumer).seq == 1
    recreator.join()
    consumer.close()


@pytest.mark.parametrize("count", [1, 2])
def test_topics_that_are_missing_are_waited_for_or_refused(client: Any, api: Api, topic_name: str, count: int) -> None:
    topics = [f"{topic_name}.{i}" for i in range(count)]
    with pytest.raises(TopicNotFound):
        next(client.consumer("c", topics, cursors=f"{topic_name}.cursors", missing="raise"))
    consumer = client.consumer("c", topics, cursors=f"{topic_name}.cursors")
    for topic in topics:
        writer = threading.Timer(0.2, api.fill, (topic, 1))
        writer.start()
        assert next(consumer).topic == topic
        writer.join()
    consumer.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_consumer_goes_on_after_a_crash_of_the_server(
    connect: Any, start_server: StartServer, free_port: int, count: int
) -> None:
    """CLIENT-13."""
    server = start_server(port=free_port)
    topics = [f"t{i}" for i in range(count)]

    def write(value: int) -> None:
        for topic in topics:
            server.request("POST", f"/v0/topics/{topic}", json={"records": [{"data": value}]})

    write(1)
    consumer = connect(server.url).consumer("c", topics)
    assert [item.data for item in take(consumer, count)] == [1] * count

    def crash() -> None:
        server.kill()
        server.start()
        write(2)

    crasher = threading.Timer(0.1, crash)
    crasher.start()
    assert [item.data for item in take(consumer, count)] == [2] * count
    crasher.join()
    consumer.close()


def test_a_file_of_another_consumer_or_of_nobody_is_refused(
    client: Any, api: Api, topic_name: str, tmp_path: Path
) -> None:
    api.fill(topic_name, 2)
    file = tmp_path / "c.json"
    with client.consumer("a", [topic_name], cursors=file) as consumer:
        take(consumer, 2)
    with pytest.raises(BadData, match='holds the cursors of "a", not of "b"'):
        next(client.consumer("b", [topic_name], cursors=file))
    file.write_text("{}")
    with pytest.raises(BadData, match="does not hold cursors"):
        next(client.consumer("a", [topic_name], cursors=file))
    with pytest.raises(ValueError, match="at least one topic"):
        client.consumer("a", [])


@pytest.mark.parametrize("count", [1, 2])
def test_stop_ends_a_run_that_waits_and_commits(server: ServerProcess, api: Api, topic_name: str, count: int) -> None:
    """CLIENT-14."""
    topics = [f"{topic_name}.{i}" for i in range(count)]
    for topic in topics:
        api.fill(topic, 3)
    with Client(server.url) as client:
        consumer = client.consumer("c", topics, cursors=f"{topic_name}.cursors")
        seen: list[int] = []
        thread = threading.Thread(target=lambda: consumer.run(lambda item: seen.append(item.seq)))
        thread.start()
        until(lambda: len(seen) == 3 * count, "everything is handled")
        begin = time.monotonic()
        consumer.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - begin < 15
        consumer.close()
        again = client.consumer("c", topics, cursors=f"{topic_name}.cursors")
        writer = threading.Timer(0.2, api.fill, (topics[0], 1))
        writer.start()
        assert next(again).seq == 4
        writer.join()
        again.close()


PROGRAM: dict[str, str] = {
    "threads": """
import sys
from topics import Client
with Client(sys.argv[1]) as client:
    client.consumer("c", [sys.argv[2]], cursors=sys.argv[2] + ".cursors").run(lambda item: print(item.seq, flush=True))
print("ended", flush=True)
""",
    "asyncio": """
import asyncio, sys
from topics import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        consumer = client.consumer("c", [sys.argv[2]], cursors=sys.argv[2] + ".cursors")
        await consumer.run(lambda item: print(item.seq, flush=True))
asyncio.run(main())
print("ended", flush=True)
""",
}


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_sigterm_ends_a_run_cleanly(server: ServerProcess, api: Api, topic_name: str, kind: str) -> None:
    """CLIENT-14."""
    api.fill(topic_name, 3)
    start: Callable[[], subprocess.Popen[str]] = lambda: subprocess.Popen(  # noqa: E731
        [sys.executable, "-c", PROGRAM[kind], server.url, topic_name], stdout=subprocess.PIPE, text=True
    )
    program = start()
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
    os.kill(program.pid, signal.SIGTERM)
    out, _ = program.communicate(timeout=30)
    assert (program.returncode, out) == (0, "ended\n")
    api.fill(topic_name, 1)
    program = start()
    assert program.stdout is not None
    assert program.stdout.readline() == "4\n"
    os.kill(program.pid, signal.SIGTERM)
    program.communicate(timeout=30)
