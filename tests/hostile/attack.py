"""Attack: what one hostile or careless client does to a server, as a function of a Target.

An attack runs in a process of its own, beside a bystander (bystander.py) that measures how long everybody else waits.
It says what it does in its docstring, and asserts what the server must answer; an assertion that fails is reported with
the figures. What it needs beforehand (a topic with a million records) is made by its `prepare`, before anything is
measured.
"""

from __future__ import annotations

import http.client
import importlib
import json
import pkgutil
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TIMEOUT_S = 60.0


class Answer(NamedTuple):
    """What the server answered; `json` is None where the body is not JSON."""

    status: int
    json: Any
    body: bytes


class Target(NamedTuple):
    """The server under attack, and how long a flood lasts."""

    host: str
    port: int
    pid: int
    seconds: float

    def connect(self, timeout_s: float = TIMEOUT_S) -> socket.socket:
        """A plain connection."""
        connection = socket.create_connection((self.host, self.port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def request(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, payload, dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        try:
            return Answer(response.status, json.loads(content), content)
        except ValueError:
            return Answer(response.status, None, content)


Act = Callable[[Target], None]


class Attack(NamedTuple):
    """One attack, and the server that it needs."""

    name: str
    act: Act
    prepare: Act | None
    settings: Callable[[], Mapping[str, object]]
    """Asked for when its server starts, because some depend on the machine as it is then."""
    in_slice: bool
    """Whether `make test` repeats it; what takes many seconds to prepare is left to `tools/attack.py`."""

    @property
    def summary(self) -> str:
        """The first line of what it says of itself."""
        return (self.act.__doc__ or "").strip().partition("\n")[0]


_attacks: dict[str, Attack] = {}


def attack(
    name: str,
    *,
    prepare: Act | None = None,
    settings: Mapping[str, object] | Callable[[], Mapping[str, object]] | None = None,
    in_slice: bool = True,
) -> Callable[[Act], Act]:
    """Add a function to the attacks; `settings` are those of the server, as for `ServerProcess`, or make them."""

    def add(act: Act) -> Act:
        assert name not in _attacks, f"there are two attacks {name}"
        asked = settings if callable(settings) else lambda: settings or {}
        _attacks[name] = Attack(name, act, prepare, asked, in_slice)
        return act

    return add


def attacks() -> dict[str, Attack]:
    """All attacks by their names."""
    import tests.hostile.attacks as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_attacks)
