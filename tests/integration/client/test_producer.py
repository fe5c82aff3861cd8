"""Producers against a real server, in threads and on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.harness.api import Api, StartServer, until
from topics import AsyncClient, Client, Closed, NotWritten, TimedOut
from topics.errors import Conflict, RecordTooLarge
from topics.testing import ServerProcess


def test_records_are_written_once_in_order_with_their_labels(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-11."""
    with client.producer(topic_name, batch_records=300) as producer:
        for n in range(2_000):
            producer.write({"n": n}, tag="t", meta={"k": str(n)})
        producer.flush()
        assert producer.written == 2_000
        producer.write("last")
    assert (producer.written, producer.last_seq) == (2_001, 2_001)
    records = list(client.topic(topic_name).read())
    assert [record.data for record in records] == [{"n": n} for n in range(2_000)] + ["last"]
    assert (records[7].tag, records[7].meta, records[-1].tag) == ("t", {"k": "7"}, None)


def test_a_record_goes_without_a_flush(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-11: after the time to linger, by itself."""
    with Client(server.url) as client, client.producer(topic_name, linger_ms=1) as producer:
        producer.write(1)
        until(lambda: producer.written == 1, "the record is stored")


def test_what_is_refused_reaches_the_caller_and_the_rest_is_stored(client: Any, topic_name: str) -> None:
    """CLIENT-12."""
    producer = client.producer(topic_name)
    producer.write("x" * 2_000_000)
    with pytest.raises(NotWritten) as failed:
        producer.flush()
    assert isinstance(failed.value.cause, RecordTooLarge)
    assert len(failed.value.records) == 1
    producer.write("fine")
    producer.close()
    assert [record.data for record in client.topic(topic_name).read()] == ["fine"]
    with pytest.raises(Closed):
        producer.write("late")


def test_a_write_that_raises_has_not_taken_its_record(server: ServerProcess, topic_name: str) -> None:
    """CLIENT-12: the failure is one of a record before it, and what was given beside that one is stored."""
    with Client(server.url) as client:
        producer = client.producer(topic_name, linger_ms=100)
        for data in ("first", "x" * 2_000_000, "third"):
            producer.write(data)
        until(lambda: producer.written == 2, "the rest is stored")
        with pytest.raises(NotWritten, match="1 record was not written"):
            producer.write("not taken")
        producer.close()
        assert [record.data for record in client.topic(topic_name).read()] == ["first", "third"]


def test_what_cannot_be_json_is_refused_where_it_is_given(client: Any, topic_name: str) -> None:
    with client.producer(topic_name) as producer:
        with pytest.raises(TypeError):
            producer.write(object())
        changing = {"n": 1}
        producer.write(changing)
        changing["n"] = 2
    assert [record.data for record in client.topic(topic_name).read()] == [{"n": 1}]


def test_a_server_with_smaller_limits_gets_smaller_batches(connect: Any, start_server: StartServer) -> None:
    """CLIENT-11."""
    server = start_server(max_batch_records=50, max_body_bytes=100_000)
    client = connect(server.url)
    with client.producer("t") as producer:
        for n in range(1_000):
            producer.write(n)
    assert [record.data for record in client.topic("t").read()] == list(range(1_000))


def test_a_server_that_takes_no_more_producers_is_written_to_all_the_same(
    connect: Any, start_server: StartServer
) -> None:
    """CLIENT-11."""
    client = connect(start_server(max_producers_per_topic=1).url)
    for n in range(3):
        with client.producer("t") as producer:
            producer.write(n)
    assert [record.data for record in client.topic("t").read()] == [0, 1, 2]


def test_a_full_buffer_holds_the_writer_and_a_server_that_stays_away_is_raised(connect: Any) -> None:
    """CLIENT-12."""
    client = connect("http://127.0.0.1:1")
    producer = client.producer("t", buffer_bytes=1_000, deadline_s=0.3)
    begin = time.monotonic()

    def fill() -> None:
        for _ in range(1_000):
            producer.write("x" * 100)

    with pytest.raises((NotWritten, TimedOut)):
        fill()
    assert 0.1 < time.monotonic() - begin < 10
    with pytest.raises(NotWritten):
        producer.close()


def test_two_producers_of_one_name_are_noticed(client: Any, topic_name: str) -> None:
    """CLIENT-11."""
    with client.producer(topic_name, producer_id="p") as first:
        first.write(1)
    second = client.producer(topic_name, producer_id="p")
    second.write(2)
    with pytest.raises(NotWritten) as failed:
        second.close()
    assert isinstance(failed.value.cause, Conflict)
    with client.producer(topic_name, producer_id="p", first_seq=2) as third:
        third.write(3)
    assert [record.data for record in client.topic(topic_name).read()] == [1, 3]


def test_an_error_of_the_program_is_not_hidden_by_one_of_the_producer(connect: Any) -> None:
    client = connect("http://127.0.0.1:1")
    with pytest.raises(KeyError), client.producer("t", deadline_s=0.1) as producer:
        producer.write({}["missing"] if producer.write(1) is None else 2)


def test_many_threads_share_a_producer(server: ServerProcess, topic_name: str) -> None:
    with Client(server.url) as client:
        with client.producer(topic_name, batch_records=100, buffer_bytes=10_000) as producer:
            threads = [
                threading.Thread(target=lambda k=k: [producer.write([k, n]) for n in range(500)])  # type: ignore[misc]
                for k in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found = [record.data for record in client.topic(topic_name).read()]
    assert len(found) == 2_000
    for k in range(4):
        assert [n for who, n in found if who == k] == list(range(500))


def test_a_producer_stays_in_its_process(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-12: a child that was forked has no thread to write for it, and is told."""
    code = f"""
import os
from topics import Client, Closed
producer = Client({server.url!r}).producer({topic_name!r})
producer.write(1)
child = os.fork()
if child == 0:
    try:
        producer.write(2)
    except Closed:
        producer.close()
        os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
producer.close()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    assert len(api.seqs(topic_name)) == 1


def test_a_program_that_forgets_to_close_loses_nothing(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-12."""
    code = f"""
from topics import Client
producer = Client({server.url!r}).producer({topic_name!r}, linger_ms=60_000)
for n in range(100):
    producer.write(n)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    assert len(api.seqs(topic_name)) == 100


def test_flush_and_close_end_in_the_time_they_are_given(connect: Any, free_port: int) -> None:
    """CLIENT-12: what is not stored by then is given back."""
    client = connect(f"http://127.0.0.1:{free_port}")
    producer = client.producer("t", deadline_s=60)
    for n in range(3):
        producer.write(n)
    began = time.monotonic()
    with pytest.raises(TimedOut, match=r"3 records are not stored after 0\.2 s"):
        producer.flush(0.2)
    with pytest.raises(NotWritten) as failed:
        producer.close(0.2)
    assert time.monotonic() - began < 10
    assert failed.value.records == [b'{"data":0}', b'{"data":1}', b'{"data":2}']


def test_ctrl_c_does_not_wait_for_a_server_that_is_away(free_port: int) -> None:
    """CLIENT-12: the first ends the program in its place, the second also the wait for what is left."""
    program = (
        "import sys\nfrom topics import Client\n"
        f"with Client('http://127.0.0.1:{free_port}').producer('t') as producer:\n"
        "    producer.write(1)\n    print('waiting', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "waiting\n"
        assert "trying again" in child.stderr.readline()
        # The first may still meet the program, before it waits.
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert child.wait(5) != 0
                break
        assert child.poll() is not None
        assert "perhaps not written: it was stopped" in child.stderr.read()


def test_a_producer_on_asyncio_that_is_not_closed_says_what_is_lost(server: ServerProcess, topic_name: str) -> None:
    """CLIENT-12."""

    async def forget() -> None:
        producer = AsyncClient(server.url).producer(topic_name)
        await producer.write(1)

    def forgotten() -> None:
        asyncio.run(forget())
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed: 1 records are lost"):
        forgotten()
