"""Service manager: what started this process, and wants to know when it serves and where its log goes.

systemd gives a socket in `NOTIFY_SOCKET` and counts a unit as started once READY=1 has come through it: then
`systemctl start` and `restart` return when requests are answered, and what is ordered after the unit finds a server.
It names the journal in `JOURNAL_STREAM`; lines that go there need no time of their own, and have their level in front.
Whoever starts the server in another way gives neither, and nothing happens.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final, TextIO

log: Final = logging.getLogger("topics")


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager, if there is one."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ stands for a name that is in no file system.
    target = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.sendto(state.encode(), target)
    except OSError as error:
        log.warning("the service manager cannot be told that %s: %s", state.partition("\n")[0], error)


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written there goes to the journal."""
    named = environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return False
    return named == f"{found.st_dev}:{found.st_ino}"
