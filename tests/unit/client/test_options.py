"""An option that a call of the library does not know is refused, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from topics import AsyncClient, Client, Draft

NOWHERE = "http://127.0.0.1:9"
"""What would answer if anything were sent: nobody, and the error would be another one."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "write": lambda client: client.topic("t").write(1, tagg="x"),
    "write_many": lambda client: client.topic("t").write_many([1], tagg="x"),
    "read": lambda client: client.topic("t").read(tagg="x"),
    "follow": lambda client: client.topic("t").follow(tagg="x"),
    "follow several": lambda client: client.follow(["t", "u"], tagg="x"),
    "configure": lambda client: client.topic("t").configure(tagg="x"),
    "put_router": lambda client: client.put_router("r", source="t", dest="u", tagg="x"),
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


WORDS: dict[str, Callable[[Any], Any]] = {
    "on_loss": lambda client: client.topic("t").read(on_loss="ignore"),
    "on_loss of several": lambda client: client.follow(["t", "u"], on_loss="Raise"),
    "on_loss of a consumer": lambda client: client.consumer("c", ["t"], on_loss="skip"),
    "missing": lambda client: client.topic("t").follow(missing="Wait"),
    "missing of several": lambda client: client.follow(["t", "u"], missing="wat"),
    "start": lambda client: client.consumer("c", ["t"], start="last"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_word_that_is_no_choice_is_refused(name: str) -> None:
    """CLIENT-21: it would be taken for one of the others."""
    with Client(NOWHERE) as client, pytest.raises(ValueError, match=rf"^{name.split()[0]} must be '.*' or '.*', not"):
        WORDS[name](client)


@pytest.mark.parametrize("given", ["abc", b"abc", {"id": 1}, Draft(data=1)])
def test_one_record_is_not_taken_for_several(given: Any) -> None:
    """CLIENT-21: the letters of a text and the keys of a dict are iterable, and never what was meant."""
    with Client(NOWHERE) as client, pytest.raises(TypeError, match=r"use write\(\)"):
        client.topic("t").write_many(given)


def test_a_consumer_has_a_name() -> None:
    with Client(NOWHERE) as client, pytest.raises(ValueError, match="needs a name"):
        client.consumer("", ["t"])


def test_a_time_without_a_zone_is_refused() -> None:
    """CLIENT-22."""
    naive = datetime(2026, 1, 1)
    with Client(NOWHERE) as client, pytest.raises(ValueError, match="from_ts must have a time zone"):
        client.topic("t").read(from_ts=naive)
    with Client(NOWHERE) as client, pytest.raises(ValueError, match="deliver_at must have a time zone"):
        client.topic("t").write(1, deliver_at=naive)
