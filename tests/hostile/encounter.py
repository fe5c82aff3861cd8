"""Encounter: one attack on a server of its own, beside a bystander, and what both were seen to do.

The server, the bystander and the attacker are three processes. With more than one core the server has one for itself,
so that what is measured is the server and not the attacker's appetite. The stall is the longest that the bystander
waited for an answer from the beginning of the attack to a second after its end, less the part of that wait in which the
machine itself stood still (pauses.py); the memory is the largest RssAnon of the server in that time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.hostile.attack import Attack, Target
from tests.hostile.pauses import Pauses, within
from topics.testing import ServerProcess

CALM_S = 1.0
SAMPLE_S = 0.01
ATTACK_DEADLINE_S = 300.0
HERE = Path(__file__).resolve().parents[2]


class Encounter(NamedTuple):
    """What came of an attack."""

    name: str
    calm_ms: float
    """The longest wait of the bystander before the attack."""
    p99_ms: float
    stall_ms: float
    waited_ms: float
    """The longest wait as the clock has it."""
    before_mib: float
    peak_mib: float
    after_mib: float
    """A second after the end."""
    refused: int
    """How many requests of the bystander were not answered with success."""
    disconnected: int
    paused_ms: float
    """How long the machine stood still meanwhile."""
    failure: str
    """What the attack found wrong, or how the server ended; empty where nothing."""


def meet(attack: Attack, *, seconds: float, tree: Path = HERE) -> Encounter:
    """Run one attack against a server of the source tree `tree`."""
    with _server(attack, tree) as server:
        _pin(server.pid, 0)
        target = Target(server.host, server.port, server.pid, seconds)
        if attack.prepare is not None:
            attack.prepare(target)
        return _watch(server, attack, target)


def _server(attack: Attack, tree: Path) -> ServerProcess:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tree / "src")
    try:
        return ServerProcess(**attack.settings())  # type: ignore[arg-type]
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _watch(server: ServerProcess, attack: Attack, target: Target) -> Encounter:
    memory, pauses = _Memory(server.pid), Pauses(sorted(os.sched_getaffinity(0)))
    bystander = _spawn("tests.hostile.bystander", server.host, str(server.port))
    memory.start()
    time.sleep(CALM_S)
    before_mib, begun = memory.last_mib, time.monotonic()
    attacker = _spawn("tests.hostile", attack.name, *(str(part) for part in target))
    try:
        _, errors = attacker.communicate(timeout=ATTACK_DEADLINE_S)
        failure = errors.decode().strip().rpartition("\n")[2] if attacker.returncode else ""
    except subprocess.TimeoutExpired:
        attacker.kill()
        attacker.communicate()
        failure = "the attack did not end"
    time.sleep(CALM_S)
    report, paused = json.loads(bystander.communicate()[0]), pauses.end()
    memory.stop()
    if not server.alive:
        failure = "the server ended"
    elif server.request("GET", "/v0/ready").status != 200:
        failure = failure or "the server is not ready any more"
    calm = [ms for at, ms in report["waits"] if at < begun]
    during = [(at, ms) for at, ms in report["waits"] if at + ms / 1000 >= begun]
    waits = sorted(ms for _, ms in during)
    return Encounter(
        name=attack.name,
        calm_ms=max(calm),
        p99_ms=waits[len(waits) * 99 // 100],
        stall_ms=max(ms - within(paused, at, at + ms / 1000) for at, ms in during),
        waited_ms=waits[-1],
        before_mib=before_mib,
        peak_mib=memory.peak_mib,
        after_mib=memory.last_mib,
        refused=report["refused"],
        disconnected=report["disconnected"],
        paused_ms=within(paused, begun, time.monotonic()),
        failure=failure,
    )


def _spawn(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=HERE,
        env=os.environ | {"PYTHONPATH": f"{HERE / 'src'}:{HERE}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _pin(process.pid, 1)
    return process


def _pin(pid: int, place: int) -> None:
    """Give a process the first core, or all the others."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[:1] if place == 0 else cores[1:])


class _Memory(threading.Thread):
    """Reads the anonymous memory of a process a hundred times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._ends = threading.Event()
        self.peak_mib = self.last_mib = 0.0

    def run(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            try:
                text = self._status.read_text()
            except OSError:
                return
            if "RssAnon:" in text:
                self.last_mib = int(text.partition("RssAnon:")[2].split()[0]) / 1024
                self.peak_mib = max(self.peak_mib, self.last_mib)

    def stop(self) -> None:
        self._ends.set()
        self.join()
