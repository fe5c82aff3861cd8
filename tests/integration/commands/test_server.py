"""`topics ping`, `watch`, `bench` and `doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from tests.harness.api import Api, StartServer, free_port
from tests.harness.commands import Shell
from topics import __version__
from topics.testing import ServerProcess


def test_ping_says_whether_a_server_serves(shell: Shell, server: ServerProcess) -> None:
    """CLI-18."""
    *answers, summary = shell.out("ping", "-c", "2", "--interval", "0s").splitlines()
    assert all(line.startswith(f"{server.url}: topics {__version__}, ready, up ") for line in answers)
    assert len(answers) == 2
    assert summary.startswith("2 answers: ")
    assert shell.json("ping")[0]["status"] == "ready"
    assert "cannot reach" in shell.fails(3, "ping", "--url", "http://127.0.0.1:1", "--wait", "150ms")


def test_ping_waits_for_a_server_that_starts() -> None:
    """CLI-18."""
    port = free_port()
    command = [sys.executable, "-m", "topics", "ping", "--wait", "60s", "--url", f"http://127.0.0.1:{port}"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ping,
        ServerProcess(port=port),
    ):
        out, err = ping.communicate(timeout=60)
    assert (ping.returncode, err) == (0, "")
    assert ", ready, " in out


def test_watch_shows_rates(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-18: how far the head has moved between two looks."""
    api.put(f"{topic_name}.q", type="queue")
    api.write(f"{topic_name}.q", {"data": 1})
    stop = threading.Event()

    def write() -> None:
        writer = Api(api.host, api.port)
        while not stop.is_set():
            writer.write(f"{topic_name}.busy", {"data": 1})
        writer.close()

    api.write(f"{topic_name}.busy", {"data": 0})
    thread = threading.Thread(target=write)
    thread.start()
    try:
        rows = shell.json("watch", topic_name, "-c", "1", "-i", "300ms")
        text = shell.out("watch", topic_name, "-c", "1", "-i", "50ms")
    finally:
        stop.set()
        thread.join()
    assert [row["topic"] for row in rows] == [f"{topic_name}.busy", f"{topic_name}.q"], "the busiest first"
    assert rows[0]["records_per_s"] > 0
    assert (rows[1]["records_per_s"], rows[1]["ready"]) == (0.0, 1)
    assert text.splitlines()[0].split()[-1] == "TOPIC"


def test_bench_measures_and_leaves_nothing(start_server: StartServer) -> None:
    """CLI-18."""
    shell = Shell(start_server().url)
    rows = shell.json("bench", "-t", "50ms", "--size", "100", "--durability", "memory")
    assert len(rows) == 5
    assert all(row["per_s"] > 0 for row in rows), rows
    assert rows[0]["p50_ms"] > 0
    assert shell.json("ls") == []


def test_doctor_finds_what_is_wrong_and_says_what_to_change(start_server: StartServer, tmp_path: Path) -> None:
    """CLI-19."""
    shell = Shell(start_server().url)
    # What the machine is like that runs the tests decides about the exit code.
    out, _ = shell.run("doctor", "--data-dir", str(tmp_path), "--json", exit_code=None)
    found = {each["check"]: each for each in map(json.loads, out.splitlines())}
    assert found["ready"]["level"] == found["key"]["level"] == found["log"]["level"] == "ok"
    assert {"settings", "data", "space", "disk", "clock", "files", "memory"} <= found.keys()
    assert list(tmp_path.iterdir()) == []
    printed = shell.out("doctor", "--no-machine")
    assert "This machine" not in printed
    assert "Nothing has to be changed" in printed

    out, _ = shell.run("doctor", "--url", "http://127.0.0.1:1", "--no-machine", exit_code=1)
    assert "  bad   server    cannot reach http://127.0.0.1:1" in out
    assert "→ start it with `topics serve`" in out
    assert "1 thing to change" in out

    locked = start_server(api_keys="k:read:shop.")
    out, _ = Shell(locked.url, TOPICS_TOKEN="wrong").run("doctor", "--no-machine", exit_code=1)
    assert "  bad   key " in out
    assert "it may read below shop." in Shell(locked.url, TOPICS_TOKEN="k").out("doctor", "--no-machine")


def test_doctor_finds_settings_that_would_not_start(server: ServerProcess, tmp_path: Path) -> None:
    """CLI-19."""
    shell = Shell(server.url, TOPICS_PORT="x", TOPICS_MAX_TOPIC="5")
    out, _ = shell.run("doctor", "--data-dir", str(tmp_path), exit_code=1)
    assert "TOPICS_PORT is 'x'" in out
