"""Restart: from the start of the process to ready, on an empty directory and after kill -9, by what is in the log.

All of the log has to be applied where `-wal` is in the name, because no checkpoint was made; one-record writes are the
dearest way to fill it, a frame each. The rows of 10 million records (`--full`) are once with the default settings,
where checkpoints bound the log, and once without any checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import records
from bench.bed import Bench
from bench.row import Row, Target, at_most

ROWS = ("start-empty", "restart-1m-wal", "restart-1m-wal-singles", "restart-10m", "restart-10m-wal")
NO_CHECKPOINT = 1 << 40
TARGET = at_most(1.5, "seconds")
MILLION = 1_000_000
STARTS = 5


def measure(bench: Bench) -> Iterator[Row]:
    """A first start, and restarts after kill -9."""
    if bench.wants("start-empty"):
        yield _empty(bench)
    if bench.wants("restart-1m-wal"):
        yield _killed(bench, "restart-1m-wal", MILLION, NO_CHECKPOINT, TARGET)
    if bench.wants("restart-1m-wal-singles"):
        yield _singles(bench)
    if bench.full and bench.wants("restart-10m"):
        yield _killed(bench, "restart-10m", 10 * MILLION, 256 << 20, None)
    if bench.full and bench.wants("restart-10m-wal"):
        yield _killed(bench, "restart-10m-wal", 10 * MILLION, NO_CHECKPOINT, None)


def _empty(bench: Bench) -> Row:
    seconds = []
    for _ in range(STARTS):
        with bench.server() as server:
            server.kill()
            shutil.rmtree(server.data_dir)
            seconds.append(bench.start(server))
    return Row("start-empty", "start on an empty directory", seconds=statistics.median(seconds))


def _killed(bench: Bench, name: str, count: int, checkpoint_wal_bytes: int, target: Target | None) -> Row:
    with bench.server(checkpoint_wal_bytes=checkpoint_wal_bytes) as server:
        records.create(server, "one", durability="disk")
        records.fill(server, "one", count, 100)
        wal_mib = _mib(server.data_dir / "wal")
        server.kill()
        seconds = bench.start(server)
        assert records.head_seq(server, "one") == count
        own = re.findall(r"in ([0-9.]+) s", server.log())[-1]
        note = f"writes of 100, {wal_mib:,.0f} MiB of log; replay {own} s"
        return Row(name, f"restart after kill -9, {count:,} records", seconds=seconds, target=target, note=note)


def _singles(bench: Bench) -> Row:
    with bench.scratch() as scratch:
        data_dir = scratch / "data"
        done = subprocess.run([sys.executable, "-m", "bench.restart", str(data_dir), str(MILLION)], check=False)
        assert done.returncode == -signal.SIGKILL, done.returncode
        wal_mib = _mib(data_dir / "wal")
        with bench.server(data_dir) as server:
            assert records.head_seq(server, "one") == MILLION
            server.kill()
            seconds = bench.start(server)
            own = re.findall(r"in ([0-9.]+) s", server.log())
        return Row(
            "restart-1m-wal-singles",
            "restart after kill -9, 1,000,000 one-record writes",
            seconds=seconds,
            target=TARGET,
            note=f"{wal_mib:,.0f} MiB of log; replay {own[-1]} s",
        )


def _mib(directory: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir()) / (1 << 20)


def write_singles(directory: str, count: int) -> None:
    """Write `count` records one by one through the engine, without a socket, then die as by kill -9."""
    import msgspec

    from topics.clock import SystemClock
    from topics.engine import Engine, requests
    from topics.engine.config import ConfigPatch
    from topics.engine.log.archive import Shelf
    from topics.engine.upkeep.upkeep import Upkeep
    from topics.storage.disk import RealDisk
    from topics.storage.job import run_inline
    from topics.storage.store import Store

    clock = SystemClock()
    store = Store(directory, disk=RealDisk(), clock=clock)
    store.open()
    engine = Engine(clock, store, shelf=Shelf(store))
    for _ in Upkeep(engine, store).recover():
        pass
    engine.put_topic("one", ConfigPatch(durability="disk"))
    write = requests.Write([requests.RecordIn(msgspec.Raw(records.DATA))])
    # Without upkeep nothing is sealed and nothing is checkpointed: everything is in the log alone.
    for i in range(count):
        engine.write("one", write, lambda ticket: None)
        if i % 64 == 0:
            engine.turn()
            run_inline(store.jobs())
    engine.run_until_idle()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    write_singles(sys.argv[1], int(sys.argv[2]))
