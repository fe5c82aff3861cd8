"""An option that a call of the library does not know is refused, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from topics import AsyncClient, Client

NOWHERE = "http://127.0.0.1:9"
"""What would answer if anything were sent: nobody, and the error would be another one."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "write": lambda client: client.topic("t").write(1, tagg="x"),
    "write_many": lambda client: client.topic("t").write_many([1], tagg="x"),
    "read": lambda client: client.topic("t").read(tagg="x"),
    "follow": lambda client: client.topic("t").follow(tagg="x"),
    "follow several": lambda client: client.follow(["t", "u"], tagg="x"),
    "producer": lambda client: client.producer("t", tagg="x"),
    "consumer": lambda client: client.consumer("c", ["t"], tagg="x"),
    "worker": lambda client: client.worker("t", tagg="x"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    """CLIENT-21: a misspelt option would do nothing, and nobody would notice."""
    with (
        Client(NOWHERE) as client,
        pytest.raises(TypeError, match=rf"^{name.split()[0]}\(\) .*'tagg'; its options are"),
    ):
        CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_option_is_refused_on_asyncio(name: str) -> None:
    """CLIENT-21."""

    async def call() -> None:
        async with AsyncClient(NOWHERE) as client:
            called = CALLS[name](client)
            if asyncio.iscoroutine(called):
                await called

    with pytest.raises(TypeError, match="'tagg'"):
        asyncio.run(call())


def test_a_misspelt_key_does_not_make_a_client_without_one() -> None:
    """CLIENT-21."""
    with pytest.raises(TypeError, match=r"'tokn'; its options are .*token"):
        Client(NOWHERE, tokn="secret")  # type: ignore[call-arg]


def test_read_does_not_take_what_only_a_follower_takes() -> None:
    """CLIENT-21: a read has an end, so it has no `tail`."""
    with Client(NOWHERE) as client, pytest.raises(TypeError, match=r"read\(\) .*'tail'"):
        client.topic("t").read(tail=True)  # type: ignore[call-overload]
