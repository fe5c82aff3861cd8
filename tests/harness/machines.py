"""Machines: several of them on this one, with a network between them and no file system in common.

A machine is a set of namespaces: network, processes, mounts and host name. It has an address of its own on a switch
that nothing outside is connected to, a `/tmp` of its own in memory, and of this repository only what it was given. So
what a program reads there is its own, or came over the network.

The first process of a machine ends when the test does, however that ends, and everything on the machine ends with it:
nothing is left behind.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.harness.api import until

ROOT = Path(__file__).resolve().parents[2]
START_S = 60
NETWORK = "10.77.0"

# The first process: it lays out the file system, says so, and then waits for the end of its input. That it ignores its
# children has the kernel take away those that end, as the first process of a machine must.
_INIT = """
import json, os, pathlib, signal, subprocess, sys
given = json.loads(sys.argv[1])
signal.signal(signal.SIGCHLD, signal.SIG_DFL)

def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)

def bind(source, target):
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)

mount("-t", "tmpfs", "aside", "/mnt")
kept = [pathlib.Path(path) for path in given["shown"]]
for n, path in enumerate(kept):
    bind(path, pathlib.Path(f"/mnt/{n}"))
for path in sorted(given["hidden"], key=len):
    if pathlib.Path(path).is_dir():
        mount("-t", "tmpfs", "own", path)
for n, path in enumerate(kept):
    bind(pathlib.Path(f"/mnt/{n}"), path)
    mount("-o", "remount,bind,ro", path)
hosts = pathlib.Path("/mnt/hosts")
hosts.write_text(given["hosts"])
mount("--bind", hosts, "/etc/hosts")
subprocess.run(["hostname", given["name"]], check=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


@functools.cache
def refused() -> str | None:
    """Why there can be no machines here, or None where there can."""
    if os.geteuid() != 0:
        return "namespaces of processes, mounts and network need root"
    try_out = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "sh", "-c"]
    try:
        tried = subprocess.run(
            [*try_out, "ip link add switch type bridge && mount -t tmpfs own /mnt"],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
    except OSError as error:
        return f"{error.filename} is not installed: Debian has it in util-linux and iproute2"
    return None if tried.returncode == 0 else f"the kernel makes no namespaces here: {tried.stderr.strip()}"


class Machine:
    """One machine. Paths below `/tmp` are its own; `files` is its file system, seen from here."""

    def __init__(self, name: str, address: str, hosts: str, shown: tuple[Path, ...]) -> None:
        self.name = name
        self.address = address
        hidden = {str(ROOT), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"}
        given = {"name": name, "hosts": hosts, "shown": [str(path) for path in shown], "hidden": sorted(hidden)}
        command = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--fork",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        self._unshare = subprocess.Popen(
            [*command, sys.executable, "-S", "-c", _INIT, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._unshare.stdout is not None
        assert self._unshare.stdout.readline() == "ready\n", f"the machine {name} did not start"
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text()
        self.init = int(children.split()[0])
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def files(self) -> Path:
        return Path(f"/proc/{self.init}/root")

    def path(self, inside: str) -> Path:
        """A file of this machine, seen from here."""
        return self.files / inside.lstrip("/")

    def command(self, *arguments: object) -> list[str]:
        """The command that runs another one on this machine, in its `/tmp`."""
        enter = ["nsenter", "--target", str(self.init), "--mount", "--net", "--pid", "--uts"]
        return [*enter, "env", "--chdir=/tmp", *map(str, arguments)]

    def start(self, *arguments: object, log: Path, environ: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program; what it prints is added to `log`, a file of the test."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_environ(), **(environ or {})},
            )
        self._processes.append(process)
        return process

    def run(self, *arguments: object, environ: dict[str, str] | None = None, timeout_s: float = START_S) -> str:
        """Run a program to its end; what it printed."""
        ran = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env={**_environ(), **(environ or {})},
            timeout=timeout_s,
            check=False,
        )
        assert ran.returncode == 0, f"on {self.name}: {ran.stdout[-2000:]}{ran.stderr[-3000:]}"
        return ran.stdout

    def pids(self, having: str = "") -> list[int]:
        """The processes of this machine, but for the first, whose command line has this text."""
        own = Path(f"/proc/{self.init}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.init:
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if (entry / "ns" / "pid").readlink() == own and having in command:
                        found.append(int(entry.name))
        return found

    def kill(self, having: str = "") -> int:
        """End such processes at once, by SIGKILL; how many there were. What is on the disk stays."""
        killed: set[int] = set()
        while pids := self.pids(having):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
        return len(killed)

    def close(self) -> None:
        """Turn it off, and lose its disk."""
        assert self._unshare.stdin is not None
        assert self._unshare.stdout is not None
        self._unshare.stdin.close()
        self._unshare.wait(START_S)
        self._unshare.stdout.close()
        for process in self._processes:
            process.wait(START_S)


class Machines:
    """Machines on one switch; each knows the others by name."""

    def __init__(self, *names: str) -> None:
        self._addresses = {name: f"{NETWORK}.{n}" for n, name in enumerate(names, 1)}
        self._hosts = "127.0.0.1 localhost\n"
        self._hosts += "".join(f"{address} {name}\n" for name, address in self._addresses.items())
        self._running: dict[str, Machine] = {}
        self._switch = Machine("switch", "", self._hosts, ())
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "link", "set", "switch", "up")
        self._ports = 0

    def add(self, name: str, *shown: Path) -> Machine:
        """Turn a machine on. `shown` are the files of this one that it sees, read-only."""
        machine = Machine(name, self._addresses[name], self._hosts, shown)
        self._running[name] = machine
        self._ports += 1
        port = f"port{self._ports}"
        own = ["name", "eth0", "netns", str(machine.init)]
        far = ["peer", "name", port, "netns", str(self._switch.init)]
        subprocess.run(["ip", "link", "add", *own, "type", "veth", *far], check=True)
        machine.run("ip", "link", "set", "lo", "up")
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        self._switch.run("ip", "link", "set", port, "master", "switch", "up")
        return machine

    def remove(self, name: str) -> None:
        """Turn a machine off: nobody hears of it any more."""
        self._running.pop(name).close()

    def close(self) -> None:
        for machine in self._running.values():
            machine.close()
        self._switch.close()


@contextlib.contextmanager
def machines(*names: str) -> Iterator[Machines]:
    """Room for machines of these names, while the context lasts."""
    made = Machines(*names)
    try:
        yield made
    finally:
        made.close()


def answers(machine: Machine, port: int, what: str) -> None:
    """Wait until something on a machine listens at a port."""
    probe = f"import socket; socket.create_connection(('{machine.name}', {port}), 1)"

    def listens() -> bool:
        tried = subprocess.run(machine.command(sys.executable, "-c", probe), capture_output=True, check=False)
        return tried.returncode == 0

    until(listens, what, START_S)


def _environ() -> dict[str, str]:
    """What a program on a machine sees of our environment: nothing that is ours, and no key."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "AWS_", "SPARK_"))}
