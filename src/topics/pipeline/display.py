"""Display: a table that stays in place on a terminal, and lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table


class Display:
    """Shows a table for as long as it is entered. `table` makes it again at each refresh, so that its times count."""

    def __init__(self, table: Callable[[], Table], console: Console) -> None:
        self._console = console
        self._live = Live(get_renderable=table, console=console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, text: str) -> None:
        """Print a line, where there is no table."""
        if self._live is None:
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)
