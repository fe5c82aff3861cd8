"""Spin: look for an answer for a moment before sleeping until it comes.

A server on the same machine answers a small request in about 30 us. To sleep for that takes three times as long: the
core falls asleep, and the kernel has to wake it again, once in the client and once more in the server. Single writes
that are awaited one after another, on one connection and two cores: 9,000 a second asleep, 22,000 awake, for the same
processor time per write. So a connection looks for its answer for up to SPIN_NS, and sleeps only then.

Where answers take longer, looking costs processor time and gains nothing, so it is given up: after a look in vain the
next request does not look, after another one in vain the next two, and so on up to SKIPPED_MAX. Only one request of a
process looks at a time, and none where there is a single core, which the server could not use meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import ClassVar, Final

SPIN_NS: Final = 100_000
SKIPPED_MAX: Final = 256


class Spin:
    """Whether the next answer of one connection is looked for, as those before it suggest."""

    __slots__ = ("_left", "_skips")

    taken: ClassVar[bool] = False
    """Whether a request of this process looks for its answer now."""
    possible: ClassVar[bool] = (os.cpu_count() or 1) > 1

    def __init__(self) -> None:
        # How many requests will not look now, and how many will not after the next look in vain.
        self._left = 0
        self._skips = 1

    def begin(self) -> bool:
        """Whether to look for the answer to the request that was sent; then `end` has to be called."""
        if self._left:
            self._left -= 1
            return False
        if Spin.taken or not Spin.possible:
            return False
        Spin.taken = True
        return True

    def end(self, *, found: bool) -> None:
        """Looking is over: the answer is there, or it was looked for in vain."""
        Spin.taken = False
        if found:
            self._skips = 1
        else:
            self._left = self._skips
            self._skips = min(2 * self._skips, SKIPPED_MAX)

    def until(self, is_there: Callable[[], object]) -> None:
        """Look for an answer, if that is likely to pay; returns when it is there or is to be slept for."""
        if not self.begin():
            return
        found = False
        end_ns = perf_counter_ns() + SPIN_NS
        try:
            while not (found := bool(is_there())):
                if perf_counter_ns() > end_ns:
                    break
        finally:
            self.end(found=found)
