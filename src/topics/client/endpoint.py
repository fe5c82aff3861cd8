"""Endpoint: where a client connects, as which node, and how long it waits; the same for both kinds of client."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final, Literal, TypedDict

from topics.client.operations.call import Patience
from topics.client.operations.unique_names import node_name
from topics.client.options import check_options
from topics.client.transport.address import DEFAULT_URL, Address

CONNECTIONS_MAX: Final = 64


class ClientOptions(TypedDict, total=False):
    """How a client connects.

    - `token`: the key for the server; by default what `TOPICS_TOKEN` holds.
    - `timeout_s`: how long the server may be silent (10); `connect_timeout_s`: how long a connection may take (5);
      `deadline_s`: how long a call may take with all its retries (30); `retries`: False to fail at the first failure.
    - `ca`: a file of certificates to trust, or `tls`, an `ssl.SSLContext` of your own.
    - `proxy`: the address of a proxy, or False for none; by default what `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` say.
    - `connections_max`: most connections at a time (64).
    - `node`: the name of this client as the holder of leases; by default one that is unique.
    """

    token: str | None
    timeout_s: float
    connect_timeout_s: float
    deadline_s: float
    retries: bool
    ca: str | Path
    tls: ssl.SSLContext
    proxy: str | Literal[False]
    connections_max: int
    node: str


class Endpoint:
    """What both kinds of client are made from."""

    def __init__(self, url: str | None, options: ClientOptions) -> None:
        check_options("Client", options, ClientOptions)
        environ = os.environ
        self.url = url if url is not None else environ.get("TOPICS_URL") or DEFAULT_URL
        self.options = options
        token = options["token"] if "token" in options else environ.get("TOPICS_TOKEN") or None
        self.address = Address(
            self.url,
            token=token,
            tls=options.get("tls"),
            ca=options.get("ca"),
            proxy=options.get("proxy"),
            environ=environ,
        )
        self.connect_timeout_s = _positive("connect_timeout_s", options.get("connect_timeout_s", 5.0))
        self.patience = Patience(
            timeout_s=_positive("timeout_s", options.get("timeout_s", 10.0)),
            deadline_s=_positive("deadline_s", options.get("deadline_s", 30.0)),
            retries=options.get("retries", True),
        )
        self.connections_max = int(_positive("connections_max", options.get("connections_max", CONNECTIONS_MAX)))
        self.node = options.get("node") or node_name()


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return value
