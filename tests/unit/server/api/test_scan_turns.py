"""Scans take turns, so that a write waits for one answer at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from topics.server.api.blocks import TURNS_BETWEEN, Blocks


class Turns:
    """An event loop by hand: what `call_soon` is given runs in the next turn."""

    def __init__(self) -> None:
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.answered: list[str] = []
        self.blocks = Blocks(cast("Any", None), cast("Any", self), self._answer)

    def _answer(self, exchange: Any, answer: Callable[[Any], None]) -> None:
        self.answered.append(exchange)

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._soon.append((callback, args))

    def scan(self, *names: str) -> None:
        for name in names:
            self.blocks.blocks(cast("Any", name))

    def write(self) -> None:
        """As a write does: committed in the next turn, together with its like, and answered in the one behind it."""
        self.call_soon(lambda: self.call_soon(self.answered.append, "write"))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            for _ in range(len(self._soon)):
                callback, args = self._soon.popleft()
                callback(*args)


def test_scans_are_answered_one_at_a_time_and_in_order() -> None:
    """However many scans ask at once, other requests come in between; none is forgotten, and the order is kept."""
    loop = Turns()
    between = TURNS_BETWEEN + 1
    loop.scan("a", "b", "c")
    loop.turn(between - 1)
    assert loop.answered == [], "not before the turns are over in which a write would be answered"
    loop.turn()
    assert loop.answered == ["a"]
    loop.scan("d")
    loop.turn(between)
    assert loop.answered == ["a", "b"]
    loop.turn(2 * between)
    assert loop.answered == ["a", "b", "c", "d"]
    loop.turn()
    loop.scan("e")
    loop.turn(between)
    assert loop.answered == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("turns", range(8))
def test_a_write_waits_for_one_scan_at_most(turns: int) -> None:
    """SCAN-5: wherever in the round of the scans the write comes."""
    loop = Turns()
    loop.scan(*"abcdefgh")
    loop.turn(turns)
    before = len(loop.answered)
    loop.write()
    loop.turn(8)
    assert loop.answered.index("write") - before <= 1
