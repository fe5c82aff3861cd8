"""When a client, a reader or a stream ends, and on which event loops it may be used."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.harness.api import Api, until
from topics import AsyncClient, BadAddress, Client, Closed
from topics.testing import ServerProcess


def test_an_asynchronous_client_is_used_on_one_event_loop_after_the_other(
    server: ServerProcess, topic_name: str
) -> None:
    """CLIENT-23: connections of a loop that is gone are not used again."""
    client = AsyncClient(server.url)

    async def write() -> int:
        return (await client.topic(topic_name).write(1)).seq

    with warnings.catch_warnings():
        # Each loop leaves a connection that was not closed, of which asyncio warns when it is collected.
        warnings.simplefilter("ignore", ResourceWarning)
        assert [asyncio.run(write()) for _ in range(3)] == [1, 2, 3]
        asyncio.run(client.close())
        gc.collect()


def test_an_asynchronous_client_is_not_used_on_two_event_loops_at_a_time(
    server: ServerProcess, topic_name: str
) -> None:
    """CLIENT-23: it says so, instead of waiting for what happens on another loop."""

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            await client.topic(topic_name).write(1)

            def elsewhere() -> None:
                with pytest.raises(RuntimeError, match="one event loop at a time"):
                    asyncio.run(_ready(client))

            await asyncio.to_thread(elsewhere)
            assert (await client.topic(topic_name).write(2)).seq == 2

    asyncio.run(main())


async def _ready(client: AsyncClient) -> None:
    await client.ready()


Follow = Callable[[AsyncClient, str], Any]
FOLLOWS: dict[str, Follow] = {
    "one topic": lambda client, name: client.topic(name).follow(),
    "several": lambda client, name: client.follow([name, f"{name}.other"], missing="wait"),
    "a missing one": lambda client, name: client.topic(f"{name}.missing").follow(missing="wait"),
}


@pytest.mark.parametrize("kind", FOLLOWS)
def test_an_asynchronous_follower_is_closed_from_another_task(
    server: ServerProcess, api: Api, topic_name: str, kind: str
) -> None:
    """CLIENT-24: it ends in its place, and its connection goes."""
    api.fill(topic_name, 1)

    async def main() -> None:
        async with AsyncClient(server.url) as client, FOLLOWS[kind](client, topic_name) as follower:
            if kind != "a missing one":
                assert (await anext(follower)).seq == 1
            waiting = asyncio.create_task(_collect(follower))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            follower.close()
            assert await asyncio.wait_for(waiting, 2) == []

    asyncio.run(main())


async def _collect(follower: Any) -> list[Any]:
    return [item async for item in follower]


def test_a_client_that_is_closed_ends_its_streams(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-24: who waits for records is told."""
    api.fill(topic_name, 1)
    client = Client(server.url)
    follower = client.follow([topic_name, f"{topic_name}.other"], missing="wait")
    assert next(follower).seq == 1
    raised: list[Exception] = []

    def wait() -> None:
        try:
            next(follower)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    client.close()
    thread.join(5)
    assert [type(each) for each in raised] == [Closed]
    follower.close()


def test_an_asynchronous_client_that_is_closed_ends_its_streams(
    server: ServerProcess, api: Api, topic_name: str
) -> None:
    """CLIENT-24."""
    api.fill(topic_name, 1)

    async def main() -> None:
        client = AsyncClient(server.url)
        follower = client.follow([topic_name, f"{topic_name}.other"], missing="wait")
        assert (await anext(follower)).seq == 1
        waiting = asyncio.create_task(_next(follower))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def _next(follower: Any) -> Coroutine[Any, Any, Any]:
    async def one() -> Any:
        return await anext(follower)

    return one()


@pytest.mark.parametrize("others", [[], ["other"]])
def test_waiting_for_a_topic_that_does_not_exist_is_said_once(
    server: ServerProcess, api: Api, topic_name: str, caplog: pytest.LogCaptureFixture, others: list[str]
) -> None:
    """CLIENT-6: the name may be misspelt, and a line every other second would hide all others."""
    names = [topic_name, *(f"{topic_name}.{other}" for other in others)]
    with Client(server.url) as client:
        consumer = client.consumer(topic_name, names)
        thread = threading.Thread(target=consumer.run, args=(lambda item: consumer.stop(),))
        thread.start()
        until(lambda: any("which does not exist" in each for each in caplog.messages), "it is said")
        time.sleep(1)
        api.fill(topic_name, 1)
        thread.join(10)
        assert not thread.is_alive()
    said = [each for each in caplog.messages if topic_name in each]
    assert said == [f"waiting for {', '.join(names)}, which does not exist"]


def test_times_may_have_a_zone(client: Any, topic_name: str) -> None:
    """CLIENT-22: a datetime with a zone is what the API calls ts, and a record tells its time in UTC."""
    topic = client.topic(topic_name)
    topic.write("a")
    [record] = topic.read()
    assert abs(record.time - datetime.now(UTC)) < timedelta(minutes=1)
    assert record.time.timestamp() * 1000 == pytest.approx(record.ts)
    local = record.time.astimezone()
    assert [each.data for each in topic.read(from_ts=local)] == ["a"]
    assert list(topic.read(from_ts=local + timedelta(seconds=1))) == []
    queue = client.topic(f"{topic_name}.jobs")
    queue.configure(type="queue")
    queue.write("later", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert queue.claim() == []


def test_tls_to_a_server_without_it_says_so(server: ServerProcess) -> None:
    """CLIENT-4: at once, since no retry can help."""
    with (
        Client(server.url.replace("http:", "https:")) as client,
        pytest.raises(BadAddress, match=r"does not speak TLS: should the address begin with http://\?"),
    ):
        client.ready()
