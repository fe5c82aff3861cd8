"""Runs the lines of deploy/Dockerfile in a bare Debian, where there is no engine to build an image.

A Dockerfile that nobody builds is a promise. This reads it and does what an engine would: FROM is a root made by
debootstrap, RUN a command inside it, USER, ENV, ENTRYPOINT and CMD a process 1 in a namespace of its own, HEALTHCHECK a
command beside it. The server is then used, stopped with SIGTERM and started again on the same volume. By then this
process has left the network of the machine for an empty one: everything comes from the wheels of the lock, and no port
is taken from anybody. Needs root, `debootstrap`, `unshare` and `ip`; the root is in a temporary directory and is
removed. If Docker runs, the image is built as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".venv" / "wheels"
DEADLINE_S = 120
PORT = 4000
KEY = "bare-root"
CLONE_NEWNET = 0x40000000


@dataclass
class Image:
    """What a Dockerfile says."""

    base: str = ""
    runs: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    entry: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)


def read(text: str) -> Image:
    """The steps of a Dockerfile; one that is not known here is an error, and not passed over."""
    image = Image()
    for line in text.replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if not line or line.startswith("#") or name in ("VOLUME", "EXPOSE", "STOPSIGNAL"):
            continue
        if name == "FROM":
            image.base = rest
        elif name == "RUN":
            image.runs.append(rest.removeprefix("--mount=type=bind,target=/src "))
        elif name == "ENV":
            image.environ |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif name == "USER":
            image.user = rest
        elif name in ("ENTRYPOINT", "CMD"):
            image.entry += json.loads(rest)
        elif name == "HEALTHCHECK":
            image.health = json.loads(rest.partition("CMD ")[2])
        else:
            raise ValueError(f"{name} is a step that this does not know")
    return image


@contextmanager
def bare(suite: str) -> Iterator[Path]:
    """A root of this Debian, with the checkout and the wheels in it, both read-only."""
    with tempfile.TemporaryDirectory(prefix="topics-root-") as place:
        root = Path(place) / "root"
        print(f"bare root: debootstrap {suite}", flush=True)
        # Python comes along here because there is no network inside; an image gets it with the script's apt-get.
        include = "python3,python3-venv"
        command = ["debootstrap", "--variant=minbase", f"--include={include}", suite, str(root)]
        if mirror := os.environ.get("DEBIAN_MIRROR"):
            command.append(mirror)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        mounted = []
        try:
            for source, at in ((ROOT, root / "src"), (WHEELS, root / "wheels")):
                at.mkdir()
                subprocess.run(["mount", "--bind", "-o", "ro", source, at], check=True)
                mounted.append(at)
            subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
            mounted.append(root / "proc")
            yield root
        finally:
            for at in reversed(mounted):
                subprocess.run(["umount", "--lazy", at], check=True)


def leave_the_network() -> None:
    """From here on there is a loopback and nothing else."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET):
        raise SystemExit("bare root: the kernel does not let this process have a network of its own")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def inside(root: Path, user: str, command: list[str], environ: dict[str, str]) -> list[str]:
    """The command line that runs a command in a root, as a user and with this environment alone."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    pairs = [f"{name}={value}" for name, value in {"PATH": path, **environ}.items()]
    return ["chroot", f"--userspec={user}:{user}", str(root), "/usr/bin/env", "-i", *pairs, *command]


def ask(method: str, path: str, body: object = None) -> dict[str, object]:
    """One request to the server."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers, method=method)
    with urllib.request.urlopen(call, timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def serve_once(root: Path, image: Image) -> dict[str, object]:
    """Start process 1, wait until it is healthy, write a record, stop it with SIGTERM; the state before the stop."""
    environ = {**image.environ, "TOPICS_API_KEYS": KEY}
    command = inside(root, image.user, image.entry, environ)
    server = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *command])
    try:
        end = time.monotonic() + DEADLINE_S
        while subprocess.run(
            inside(root, image.user, image.health, environ), capture_output=True, check=False
        ).returncode:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < end, "the health check does not succeed"
            time.sleep(0.2)
        ask("POST", "/v0/topics/orders", {"records": [{"data": "tea"}]})
        state = ask("GET", "/v0/topics/orders")
        # unshare waits for its child, and the child is process 1 of its namespace: what an engine signals.
        child = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(child[0]), signal.SIGTERM)
        code = server.wait(DEADLINE_S)
        assert code == 0, f"the server ended with {code}"
        return state
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """Everything, or the reason why not."""
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("bare root: needs root and debootstrap (apt-get install debootstrap)")
    if not (WHEELS / ".ready").exists():
        sys.exit("bare root: needs the wheels of the lock (make wheels)")
    image = read((ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
    suite = image.base.partition(":")[2].removesuffix("-slim")
    has_docker = subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    if has_docker:
        subprocess.run(["docker", "build", "-f", "deploy/Dockerfile", "-t", "topics", "."], cwd=ROOT, check=True)
    with bare(suite) as root:
        leave_the_network()
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        for step in image.runs:
            print(f"bare root: {step}", flush=True)
            subprocess.run(inside(root, "root", shlex.split(step), offline), check=True)
        for count in (1, 2):
            state = serve_once(root, image)
            assert state["count"] == count, state
        writable = [path for path in ("/opt/topics", "/etc", "/src") if _may_write(root, image.user, path)]
        assert not writable, f"{image.user} may write to {writable}"
    print("bare root: installed without a network, served twice on one volume as process 1, stopped cleanly")
    if not has_docker:
        print("bare root: no Docker runs here, so no image was built")


def _may_write(root: Path, user: str, path: str) -> bool:
    return subprocess.run(inside(root, user, ["test", "-w", path], {}), check=False).returncode == 0


if __name__ == "__main__":
    main()
