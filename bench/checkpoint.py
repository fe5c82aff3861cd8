"""A checkpoint under load: what the writers notice of it, how long it takes and how large it is.

The same load runs twice, without and with checkpoints, on a server that holds a thousand topics and half a million
records; the second run makes a checkpoint every few megabytes of log, many times as often as the default does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import records
from bench.bed import Bench
from bench.reads import await_sealed
from bench.restart import NO_CHECKPOINT
from bench.row import Row

ROWS = ("checkpoint-none", "checkpoint-load")
EVERY_BYTES = 3 << 20


class Observer:
    """Watches the snapshot directory from outside: how large each file is, and how long it took to be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._over = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.sizes: dict[str, int] = {}
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[Observer]:
        """Watch while the block runs."""
        self._thread.start()
        try:
            yield self
        finally:
            self._over = True
            self._thread.join()

    def _watch(self) -> None:
        begun: float | None = None
        known = {path.name for path in self._directory.iterdir()}
        while not self._over:
            with contextlib.suppress(FileNotFoundError):
                for path in self._directory.iterdir():
                    if path.name.endswith(".tmp"):
                        begun = begun or time.monotonic()
                    elif path.name not in known:
                        known.add(path.name)
                        self.sizes[path.name] = path.stat().st_size
                        if begun is not None:
                            self.seconds.append(time.monotonic() - begun)
                        begun = None
            time.sleep(0.002)


def measure(bench: Bench) -> Iterator[Row]:
    """Writes without and with checkpoints."""
    for name, every_bytes, title in (
        ("checkpoint-none", NO_CHECKPOINT, "POST one record, disk, no checkpoint"),
        ("checkpoint-load", EVERY_BYTES, "POST one record, disk, checkpoints meanwhile"),
    ):
        if not bench.wants(name):
            continue
        with bench.server(checkpoint_wal_bytes=every_bytes) as server:
            records.fill_topics(server, 0, 1000)
            records.fill(server, "t0", 500_000)
            await_sealed(server.data_dir)
            observer = Observer(server.data_dir / "snapshots")
            with observer.watching():
                row = bench.measure(name, title, server, records.post("t1"))
            if observer.sizes:
                size_kib = max(observer.sizes.values()) / 1024
                longest = f"{max(observer.seconds) * 1e3:.0f} ms" if observer.seconds else "under 2 ms"
                row.add_note(f"{len(observer.sizes)} checkpoints of {size_kib:,.0f} KiB, file written in {longest}")
            yield row
