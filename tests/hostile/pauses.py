"""Pauses: when a core of this machine stood still, which no program on it can help.

A virtual machine does not run while its host has other work for a core, or looks for a page of memory that the machine
touches for the first time: 50 to 110 ms at once were seen, while the kernel counts neither as anybody's. Whoever waits
in such a time waits for nobody's fault. So on each core a process with a priority above all ordinary ones sleeps for a
moment and looks at the clock. Where it comes late, that core did nothing else either.

It needs the right to such a priority. Without it no pause is known, because an ordinary process is late on a busy core.

    python -m tests.hostile.pauses CORE
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

Span = tuple[float, float]
"""From when to when, in seconds on the monotonic clock."""

EVERY_S: Final = 0.001
LATE_S: Final = 0.005
"""What a kernel may take for itself before it looks for who comes next."""
PRIORITY: Final = 1


class Pauses:
    """The watching processes, one for each core."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._watching = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for core in cores
        ]

    def end(self) -> list[Span]:
        """The pauses of all cores since the beginning, none of which overlap."""
        found: list[Span] = []
        for process in self._watching:
            found += map(tuple, json.loads(process.communicate()[0]))
        return joined(found)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same times, in order and without overlaps."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def within(spans: Sequence[Span], begin: float, end: float) -> float:
    """How many milliseconds from `begin` to `end` are in these spans, which do not overlap."""
    return 1000 * sum(max(0.0, min(end, b) - max(begin, a)) for a, b in spans)


def main() -> None:
    """Watch a core until standard input ends, then report."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    found: list[Span] = []
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        sys.stdin.read()
    else:
        before = time.monotonic()
        while not select.select([sys.stdin], [], [], EVERY_S)[0]:
            now = time.monotonic()
            if now - before > EVERY_S + LATE_S:
                found.append((before + EVERY_S, now))
            before = now
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
