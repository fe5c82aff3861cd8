"""File descriptors: how many this process may have, and how many of them are for clients.

A connection takes one, and so does a file. The store must never run out: a log file that cannot be opened is a failed
write, and after that the server takes no writes until it is restarted. So the limit of the process is raised as far as
needed and allowed, and where that is not far enough, `max_connections` is lowered: a client is then turned away with a
429, and the store keeps its share.

The system keeps them in a table, which it doubles when it is full. In a process with threads whoever opens a file or a
connection waits for that, for 8 to 20 ms and longer on a busy machine. So the table gets its size at the start, before
there are threads, which takes a third of a millisecond.
"""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path
from typing import Final

from topics.server.http.limits import REFUSED_MAX
from topics.settings import Settings
from topics.storage.segment.tier import OPEN_FILES_MAX

FILES_PER_SHARD: Final = 4
OTHER_FILES: Final = 64
"""The loop's own, checkpoints, and files that the reading threads have open."""
UNBOUNDED: Final = 1 << 30
TABLE_MAX: Final = 1 << 16
"""How many descriptors the table has room for from the start, at most: it takes 8 bytes for each."""


def reserved(settings: Settings, backlog: int) -> int:
    """How many are not for connections that are served; up to `backlog` may be accepted before one of them is cut."""
    tiers = 1 if settings.cold_dir is None else 2
    store = tiers * OPEN_FILES_MAX + settings.wal_shards * FILES_PER_SHARD
    return store + OTHER_FILES + REFUSED_MAX + backlog


def allot(settings: Settings, backlog: int) -> tuple[int, int]:
    """Raise the limit of the process as far as needed; how many connections to serve, and how many to turn away."""
    wanted = settings.max_connections or UNBOUNDED
    aside = reserved(settings, backlog)
    limit = _raised_to(wanted + aside)
    _make_room(min(limit, wanted + aside, TABLE_MAX))
    # A process that may have very few gives clients half of them.
    return min(wanted, max(limit - aside, limit // 2)), min(REFUSED_MAX, limit // 8)


def _raised_to(wanted: int) -> int:
    """The limit after an attempt to have it at `wanted`; it is never lowered."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (UNBOUNDED if each == resource.RLIM_INFINITY else each for each in limits)
    target = min(wanted, hard)
    if target <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target if target < UNBOUNDED else limits[1], limits[1]))
    except (OSError, ValueError):
        return soft
    return target


def _make_room(count: int) -> None:
    """Have the table hold so many."""
    try:
        with Path(os.devnull).open("rb") as file:
            os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, count - 1))
    except OSError:
        # It grows when it has to, as it does for everybody.
        return
