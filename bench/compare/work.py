"""Work: what is done on every system, round after round, and what came of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bed import Bench, anon_mib, await_true, cpu_s
from bench.compare.nats import Nats
from bench.compare.redis import Redis
from bench.compare.system import READ_RECORDS, WORKERS, Sample, System, Target, hear, work_off
from bench.compare.topics import Topics

SYSTEMS: tuple[System, ...] = (Topics(), Redis(), Nats())
JOBS_A_SECOND = 150_000
KEPT_RECORDS = 500_000


@dataclass
class Round:
    """What one round on one system gave; None is what does not apply."""

    records_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us: float | None = None
    restart_s: float | None = None
    memory_mib: float | None = None
    disk_mib: float | None = None


@dataclass
class Outcome:
    """All rounds of one work on one system."""

    work: str
    system: str
    rounds: list[Round] = field(default_factory=list)

    def of(self, figure: str) -> list[float]:
        """A figure of every round, in order of size; nothing where it does not apply."""
        return sorted(value for value in (getattr(each, figure) for each in self.rounds) if value is not None)

    def median(self, figure: str) -> float | None:
        """The middle of a figure."""
        values = self.of(figure)
        return statistics.median_low(values) if values else None

    def as_dict(self) -> dict[str, Any]:
        """For the file of figures; see `outcomes`."""
        figures = {name: [_short(value) for value in self.of(name)] for name in Round.__dataclass_fields__}
        return {"work": self.work, "system": self.system} | {name: values for name, values in figures.items() if values}


def outcomes(rows: list[dict[str, Any]]) -> list[Outcome]:
    """What `as_dict` has made of outcomes, once more as outcomes."""
    found = []
    for row in rows:
        named = {name: row[name] for name in Round.__dataclass_fields__ if name in row}
        rounds = [
            Round(**{name: values[i] for name, values in named.items() if i < len(values)})
            for i in range(max(map(len, named.values())))
        ]
        found.append(Outcome(row["work"], row["system"], rounds))
    return found


def _short(value: float) -> float:
    """Four digits: more would pretend."""
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Work:
    """One thing to do on every system."""

    name: str
    run: Callable[[System, Bench], Iterator[Round]]
    rounds_max: int = 100


def _measured(target: Target, does: Callable[[], Sample]) -> Round:
    used = cpu_s(target.pid)
    sample = does()
    used = cpu_s(target.pid) - used if sample.cpu_s is None else sample.cpu_s
    rate = sample.records / sample.seconds
    return Round(rate, sample.p50_ms, sample.p99_ms, used / sample.records * 1e6)


def _append(system: System, bench: Bench, per_request: int, in_flight: int) -> Iterator[Round]:
    with system.serve(bench) as target:
        yield _measured(target, lambda: system.append(target, per_request, in_flight, bench.seconds, False))


def _append_synced(system: System, bench: Bench) -> Iterator[Round]:
    if system.synced:
        with system.serve_synced(bench) as target:
            yield _measured(target, lambda: system.append(target, 1, 64, bench.seconds, True))


def _read(system: System, bench: Bench) -> Iterator[Round]:
    with system.serve(bench) as target:
        system.fill(target, READ_RECORDS)
        # Once unmeasured: what a server keeps of a read, it keeps from here on.
        system.read(target, 1)
        yield _measured(target, lambda: system.read(target, bench.seconds))


def _jobs(system: System, bench: Bench) -> Iterator[Round]:
    with system.serve(bench) as target:
        system.fill_jobs(target, int(JOBS_A_SECOND * bench.seconds) // 1000 * 1000)
        lines = [system.line(target, number) for number in range(WORKERS)]
        yield _measured(target, lambda: work_off(lines, bench.seconds))


def _hear(system: System, bench: Bench) -> Iterator[Round]:
    with system.serve(bench) as target:
        pair = system.pair(target)
        done = _measured(target, lambda: hear(pair, bench.seconds))
        yield Round(p50_ms=done.p50_ms, p99_ms=done.p99_ms, cpu_us=done.cpu_us)


def _restart(system: System, bench: Bench) -> Iterator[Round]:
    with bench.scratch() as scratch:
        data_dir = scratch / "data"
        data_dir.mkdir()
        with system.serve(bench, data_dir) as target:
            system.fill(target, KEPT_RECORDS)
            await_true(lambda: system.holds(target, KEPT_RECORDS), f"{system.name} to have everything")
            memory_mib = anon_mib(target.pid)
        disk_mib = _disk_mib(data_dir)
        begin = time.monotonic()
        with system.serve(bench, data_dir) as target:
            await_true(lambda: system.holds(target, KEPT_RECORDS), f"{system.name} to be back")
            yield Round(restart_s=time.monotonic() - begin, memory_mib=memory_mib, disk_mib=disk_mib)


def _disk_mib(directory: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file()) / (1 << 20)


WORKS = (
    Work("append", lambda system, bench: _append(system, bench, 1, 64)),
    Work("append-synced", _append_synced),
    Work("append-100", lambda system, bench: _append(system, bench, 100, 16)),
    Work("read", _read),
    Work("jobs", _jobs),
    Work("hear", _hear),
    Work("restart", _restart, rounds_max=1),
)


def compare(bench: Bench, systems: list[System]) -> Iterator[Outcome]:
    """Each work in rounds, in each round one system after the other."""
    for work in WORKS:
        if not bench.wants(work.name):
            continue
        found = [Outcome(work.name, system.name) for system in systems]
        for _ in range(min(bench.rounds, work.rounds_max)):
            for outcome, system in zip(found, systems, strict=True):
                outcome.rounds += work.run(system, bench)
        yield from (outcome for outcome in found if outcome.rounds)
