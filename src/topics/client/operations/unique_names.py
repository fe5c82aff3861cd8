"""Unique names, which nothing else in the world has: idempotency keys and nodes.

A key is a random text of this process and a number. A process that forks gets another text in its child: two writes
under one key would be one write.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket

_run = secrets.token_hex(10)
_numbers = itertools.count(1)


def _renew() -> None:
    global _run
    _run = secrets.token_hex(10)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def next_key() -> str:
    """A key that was never used."""
    return f"{_run}-{next(_numbers)}"


def node_name() -> str:
    """A name for this client as the holder of leases: host, process, and what makes it unique."""
    host = "".join(each for each in socket.gethostname() if each.isalnum() or each in "-.")[:60]
    return f"{host or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
