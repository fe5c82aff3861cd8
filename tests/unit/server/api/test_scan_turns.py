"""Scans take turns, so that a write waits for one answer at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.harness.loop import ManualLoop
from topics.server.api.blocks import TURNS_BETWEEN, BlockHandlers
from topics.server.http.account import Account
from topics.testing import ManualClock


class Turns:
    """Scans and writes on a loop that turns by hand."""

    def __init__(self) -> None:
        self.loop = ManualLoop(ManualClock())
        self.answered: list[str] = []
        self.blocks = BlockHandlers(cast("Any", None), cast("Any", self.loop), cast("Any", self), Account())

    def handle(self, exchange: Any, answer: Callable[[Any], None]) -> None:
        self.answered.append(exchange)

    def scan(self, *names: str) -> None:
        for name in names:
            self.blocks.blocks(cast("Any", name))

    def write(self) -> None:
        """As a write does: committed in the next turn, together with its like, and answered in the one after it."""
        self.loop.call_soon(lambda: self.loop.call_soon(self.answered.append, "write"))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn()


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
