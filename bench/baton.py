"""Baton: two benches that measure at the same time, a second each in turn, so that both meet the machine in one mood.

A shared machine swings within seconds, and by more than any change worth finding. Two measurements of three seconds,
one after the other, differ by that; of slices of a second in turns, both get their share of every swing. Only the bench
that has the baton sends anything: it passes it on before each slice. Its servers go on with what they have to do; to
stop them until then would look like a load to them that they have to give way to.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

ENVIRONMENT: Final = "BENCH_BATON"
SLICE_S: Final = 1.0


class Baton:
    """One end of two pipes: a byte on the way is the baton."""

    def __init__(self, take: int, give: int) -> None:
        self._take = take
        self._give = give

    @classmethod
    def inherited(cls) -> Baton | None:
        """What the process that started this bench has given it, if it is one of two; waits for the first turn."""
        ends = os.environ.pop(ENVIRONMENT, None)
        if ends is None:
            return None
        baton = cls(*map(int, ends.split(",")))
        baton.await_turn()
        return baton

    def await_turn(self) -> None:
        """Wait for the baton; where the other bench has ended, go on alone."""
        os.read(self._take, 1)

    def pass_on(self) -> None:
        """Let the other bench go on until it passes the baton back."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._give, b"!")
            self.await_turn()


class Pair:
    """The two ends of the baton for two processes; the first one begins."""

    def __init__(self) -> None:
        to_first, to_second = os.pipe(), os.pipe()
        self.ends = ((to_first[0], to_second[1]), (to_second[0], to_first[1]))
        os.write(to_first[1], b"!")

    def close(self) -> None:
        """Close what this process holds, so that a bench notices the end of the other."""
        for fd in (fd for end in self.ends for fd in end):
            os.close(fd)
