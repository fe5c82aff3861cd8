"""Progress: how far a long read or write has got, on stderr, where somebody looks at it and nothing else is printed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(label: str, total: int | None, *, shown: bool, is_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A function to call with how far it has got; `total` is None where that is not known."""
    if not (shown and sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *([] if total is None else [BarColumn(), TextColumn("{task.percentage:>3.0f}%")]),
        DownloadColumn() if is_bytes else MofNCompleteColumn(),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
