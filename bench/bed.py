"""Bed: what every measurement needs: the cores, pinned processes, what they cost, and the settings of this run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from bench import load
from bench.baton import SLICE_S, Baton
from bench.load import Figures, Traffic
from bench.row import Row, Target
from topics.testing import ServerProcess

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
BUSY = 0.9
"""A process that uses this share of its core has it for itself."""
CALM_S, CALM_SHARE, CALM_MAX_S = 0.5, 0.1, 10.0
"""A process that uses no more than this share of a core for so many seconds does nothing; how long that is awaited."""


@dataclass(frozen=True)
class Process:
    """A peer that is under measurement."""

    host: str
    port: int
    pid: int


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, user and system, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def anon_mib(pid: int) -> float:
    """Anonymous memory of a process: RssAnon."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not report RssAnon")


def filesystem(directory: Path) -> str:
    """The type of the filesystem that holds a directory."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, at, kind = line.split()[:3]
        if directory.resolve().is_relative_to(at) and len(at) > len(best[0]):
            best = (at, kind)
    return best[1]


@dataclass
class Bench:
    """The settings of one run, and what the sections ask for."""

    full: bool = False
    only: tuple[str, ...] = ()
    seconds: float = 3.0
    rounds: int = 3
    directory: Path | None = None
    cores: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    baton: Baton | None = None

    def wants(self, *names: str) -> bool:
        """Whether any of these rows was asked for."""
        return not self.only or any(fnmatch(name, pattern) for name in names for pattern in self.only)

    def pass_on(self) -> None:
        """Let the other bench have its turn, where there is one."""
        if self.baton is not None:
            self.baton.pass_on()

    def slices(self) -> Iterator[float]:
        """How long each part of a measurement lasts: all in one, or with another bench in turns."""
        if self.baton is None:
            yield self.seconds
            return
        for _ in range(max(1, round(self.seconds / SLICE_S))):
            self.pass_on()
            yield SLICE_S

    def ticks(self) -> Iterator[None]:
        """Again and again, until the time of a measurement is over."""
        for seconds in self.slices():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory on the disk that is measured, removed at the end."""
        with tempfile.TemporaryDirectory(prefix="topics-bench-", dir=self.directory) as path:
            yield Path(path)

    @contextlib.contextmanager
    def on_server_core(self) -> Iterator[None]:
        """Processes that are started inside run on the server's core; without it, on the generator's."""
        os.sched_setaffinity(0, {self.cores[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, {self.cores[-1]})

    @contextlib.contextmanager
    def server(self, data_dir: Path | None = None, **settings: object) -> Iterator[ServerProcess]:
        """A server on its core, with a data directory of its own unless one is given."""
        with self.scratch() as scratch:
            server = ServerProcess(data_dir or scratch / "data", log_level="info", **settings)
            try:
                self.start(server)
                yield server
            finally:
                server.kill()
                server.close()

    @contextlib.contextmanager
    def peer(self, *command: str, data_dir: Path | None = None) -> Iterator[Process]:
        """A peer on the server's core; `{port}` and `{dir}` in its command become a free port and a directory.

        The directory is one of its own unless one is given. At the end the peer is killed as a crash would.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with self.scratch() as scratch:
            with self.on_server_core():
                process = subprocess.Popen(
                    [part.format(port=port, dir=data_dir or scratch) for part in command],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            try:
                await_true(lambda: _listens(port), f"{command[0]} to listen", 60)
                yield Process("127.0.0.1", port, process.pid)
            finally:
                process.kill()
                process.wait()

    def start(self, server: ServerProcess, deadline_s: float = 120.0) -> float:
        """Start a server on its core; the seconds until it was ready."""
        begin = time.monotonic()
        with self.on_server_core():
            server.start(wait_ready=False)
        server.await_ready(begin + deadline_s)
        return time.monotonic() - begin

    def measure(
        self,
        name: str,
        title: str,
        server: ServerProcess | Process,
        traffic: Traffic | Callable[[int], Traffic],
        *,
        records: int = 1,
        rounds: int = 1,
        target: Target | None = None,
        peer: str | None = None,
    ) -> Row:
        """Send traffic and make a row of it: the median round by requests per second.

        `traffic` may be a function of the round, for traffic that must not meet what an earlier round has left.
        """
        rows = []
        sent = traffic(0) if callable(traffic) else traffic
        for i in range(rounds):
            if i and callable(traffic):
                sent = traffic(i)
            parts, used, took = [], cpu_s(server.pid), 0.0
            for seconds in self.slices():
                begin = time.monotonic()
                parts.append(load.run(sent, server.host, server.port, seconds))
                took += time.monotonic() - begin
                sent = sent.after(parts[-1].requests)
            # What the server still does right after the last answer belongs to the requests before it.
            used = cpu_s(server.pid) - used
            rows.append(self._row(name, title, load.added(parts), records, used, took))
        row = sorted(rows, key=lambda each: each.requests_s or 0)[(rounds - 1) // 2]
        row.target, row.peer = target, peer
        return row

    def _row(self, name: str, title: str, figures: Figures, records: int, used: float, took: float) -> Row:
        notes = []
        core = used / took
        if not load.has_wrk():
            notes.append("generator-bound (no wrk)")
        elif figures.generator_core > BUSY > core:
            notes.append("generator-bound")
        elif core < BUSY and len(self.cores) > 1:
            notes.append(f"one core alone: {figures.requests / used:,.0f} req/s" if used else "")
        if figures.refused or figures.broken:
            notes.append(f"{figures.refused} REFUSED, {figures.broken} BROKEN")
        rate = figures.requests / figures.seconds
        return Row(
            name,
            title,
            requests_s=rate,
            records_s=rate * records if records else None,
            p50_ms=figures.p50_ms,
            p99_ms=figures.p99_ms,
            cpu_us=used / figures.requests * 1e6 if figures.requests else None,
            core=core,
            note="; ".join(notes),
        )


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def await_true(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.02)


def await_calm(pid: int) -> None:
    """Wait until a server that was filled has sealed what it keeps: that is no part of what is measured next."""
    end = time.monotonic() + CALM_MAX_S
    used, since = cpu_s(pid), time.monotonic()
    while since < end:
        time.sleep(CALM_S)
        now, later = cpu_s(pid), time.monotonic()
        if now - used <= CALM_SHARE * (later - since):
            return
        used, since = now, later
