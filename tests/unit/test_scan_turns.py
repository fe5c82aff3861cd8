"""Scans take turns, so that a write waits for one answer at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from topics.server.blocks import Blocks


class Turns:
    """An event loop by hand: what `call_soon` is given runs in the next turn."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()


def test_each_turn_of_the_loop_answers_one_scan() -> None:
    """However many scans ask at once, other requests come in between; none is forgotten, and the order is kept."""
    loop = Turns()
    answered: list[Any] = []
    blocks = Blocks(cast("Any", None), cast("Any", loop), lambda exchange, answer: answered.append(exchange))
    for name in "abc":
        blocks.blocks(cast("Any", name))
    assert answered == [], "not in the turn in which they came"
    loop.turn()
    assert answered == ["a"]
    blocks.blocks(cast("Any", "d"))
    loop.turn()
    assert answered == ["a", "b"]
    loop.turn()
    loop.turn()
    assert answered == ["a", "b", "c", "d"]
    loop.turn()
    blocks.blocks(cast("Any", "e"))
    loop.turn()
    assert answered == ["a", "b", "c", "d", "e"]
