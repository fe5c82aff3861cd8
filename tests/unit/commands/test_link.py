"""Which server a command talks to, and what it does when that does not answer as it should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from topics.client.errors import Unreachable
from topics.client.operations import call
from topics.commands.failures import EXIT_USAGE, CommandError
from topics.commands.link import Link, Target, linked, target
from topics.errors import ShuttingDown

READY = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"status":"ready"}'
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 52\r\n\r\n"
    b'{"error":{"code":"shutting_down","message":"later"}}'
)
FOREIGN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>"


@contextmanager
def answering(*connections: list[bytes]) -> Iterator[str]:
    """A server that answers each connection with these replies, a request each, and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        for replies in connections:
            accepted, _ = listener.accept()
            with accepted:
                for reply in replies:
                    accepted.recv(65_536)
                    accepted.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "PAUSE_FIRST_S", 0.001)


def linked_to(url: str, token: str | None = None) -> Link:
    return Link(Target(url, token))


def test_a_server_that_restarts_is_waited_for() -> None:
    with answering([], [BUSY], [READY]) as url, closing(linked_to(url)) as link:
        assert link.patient.ready().status == "ready"


def test_without_patience_the_first_failure_is_reported() -> None:
    with answering([]) as url, closing(linked_to(url)) as link, pytest.raises(Unreachable, match="cannot reach"):
        link.now.ready()
    with answering([BUSY]) as url, closing(linked_to(url)) as link, pytest.raises(ShuttingDown, match="later"):
        link.now.ready()


def test_a_connection_that_was_closed_while_it_rested_is_opened_again() -> None:
    with answering([READY], [READY]) as url, closing(linked_to(url)) as link:
        assert link.now.ready() == link.now.ready()


def test_an_answer_of_something_else_is_reported_as_such() -> None:
    with (
        answering([FOREIGN]) as url,
        pytest.raises(CommandError, match="404 and is not from"),
        linked(Target(url, None)) as link,
    ):
        link.patient.ready()


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4000", "ftp://x", "http://", "http://h:0", "http://h:x", "http://h:99999"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with (
        pytest.raises(CommandError, match=r"it must be like http://127\.0\.0\.1:4000") as refused,
        linked(Target(url, None)),
    ):
        pass
    assert refused.value.exit_code == EXIT_USAGE


def test_a_key_that_could_not_be_one_is_refused_before_it_is_sent() -> None:
    with (
        pytest.raises(CommandError, match="printable ASCII") as refused,
        linked(Target("http://127.0.0.1:1", "se\ncret")),
    ):
        pass
    assert "se" not in str(refused.value).split()


PROFILES = """
default = "home"

[home]
url = "http://home:1"

[shop]
url = "https://shop:2"
token_file = "shop.key"

[open]
url = "http://open:3"
token = "in the file"
ca = "~/ca.pem"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with profiles."""
    (tmp_path / "profiles.toml").write_text(PROFILES.replace("shop.key", str(tmp_path / "shop.key")))
    (tmp_path / "profiles.toml").chmod(0o600)
    (tmp_path / "shop.key").write_text("of the shop\n")
    (tmp_path / "flag.key").write_text("of the flag\n")
    return {"TOPICS_PROFILES": str(tmp_path / "profiles.toml")}


def test_the_nearest_name_of_a_server_counts_and_its_key_stays_with_it(environ: dict[str, str], tmp_path: Path) -> None:
    """CLI-12."""
    shell = environ | {"TOPICS_URL": "http://env:5", "TOPICS_TOKEN": "of the shell"}
    flag = tmp_path / "flag.key"

    assert target(None, None, None, {"TOPICS_PROFILES": "/none"}) == Target("http://127.0.0.1:4000", None)
    assert target(None, None, None, environ) == Target("http://home:1", None)
    assert target(None, None, None, environ | {"TOPICS_PROFILE": "shop"}) == Target("https://shop:2", "of the shop")
    assert target(None, None, None, shell) == Target("http://env:5", "of the shell")
    assert target(None, "shop", None, shell) == Target("https://shop:2", "of the shop")
    assert target(None, "home", None, shell) == Target("http://home:1", "of the shell")
    assert target(None, "shop", flag, shell) == Target("https://shop:2", "of the flag")
    assert target("http://flag:6", None, None, environ) == Target("http://flag:6", None)
    assert target("http://flag:6", "shop", None, shell) == Target("http://flag:6", "of the shell")
    found = target(None, "open", None, environ)
    assert (found.token, found.ca, found.warning) == ("in the file", str(Path("~/ca.pem").expanduser()), None)


def test_a_key_that_others_can_read_is_warned_about(environ: dict[str, str]) -> None:
    """CLI-12."""
    Path(environ["TOPICS_PROFILES"]).chmod(0o644)
    assert "chmod 600" in (target(None, "open", None, environ).warning or "")
    assert target(None, "home", None, environ).warning is None


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (PROFILES, "shp", 'there is no profile "shp" in .*; did you mean "shop"?'),
        ("[a]\nurl = 1", "a", "url must be a text"),
        ("[a]\ntoken = 'x'", "a", "has no url"),
        ("[a]\nurl = 'x'\nkey = 'y'", "a", 'has a field "key"; it may have url, token'),
        ("= nonsense", "a", "is not TOML"),
        ("[a]\nurl = 'x'\ntoken_file = '/none/key'", "a", "token_file /none/key: No such file"),
        (None, "a", "does not exist"),
    ],
)
def test_a_profile_that_cannot_be_used_says_why(
    environ: dict[str, str], text: str | None, name: str, expected: str
) -> None:
    """CLI-12."""
    file = Path(environ["TOPICS_PROFILES"])
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(CommandError, match=expected):
        target(None, name, None, environ)
