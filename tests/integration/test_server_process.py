"""A server process starts, prints where it listens, stops cleanly and survives being tested (CLI-4, CLI-5)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.harness.api import Api, until
from topics.testing import ServerProcess


def test_a_server_listens_on_a_free_loopback_port_and_is_ready(server: ServerProcess) -> None:
    assert server.host == "127.0.0.1"
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"
    answer = server.request("GET", "/v0/ready")
    assert answer.status == 200
    assert answer.json["status"] == "ready"


def test_sigterm_ends_the_server_with_exit_code_0(tmp_path: Path) -> None:
    """stop() asserts the exit code itself."""
    with ServerProcess(data_dir=tmp_path / "data") as own:
        pid = own.pid
        own.stop()
        assert not own.alive
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_killed_server_can_be_started_again_on_the_same_data_dir() -> None:
    with ServerProcess() as own:
        first = own.pid
        own.kill()
        assert not own.alive
        own.restart()
        assert own.pid != first
        assert own.request("GET", "/v0/health").status == 200


def test_the_service_manager_hears_when_the_server_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEPLOY-6: what waits for the unit finds a server that answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with ServerProcess(data_dir=tmp_path / "data") as own:
            assert listening.recv(100) == b"READY=1"
            assert own.request("GET", "/v0/ready").status == 200
        assert listening.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"port": "x"}, "TOPICS_PORT is 'x', but must be a whole number from 0 to 65535"),
        ({"api_keys": "hush:reed"}, "TOPICS_API_KEYS: entry 1 is malformed"),
        ({"TOPICS_HOST": "0.0.0.0"}, "there are no keys"),
    ],
)
def test_a_server_that_refuses_to_start_says_why(settings: dict[str, str], expected: str) -> None:
    """AUTH-16: fail-closed."""
    with pytest.raises(AssertionError, match="ended before") as refused, ServerProcess(**settings):  # type: ignore[arg-type]
        pass

    assert expected in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_server_that_cannot_start_says_what_to_do(server: ServerProcess, tmp_path: Path) -> None:
    """CLI-4: every message says what to do next; unit tests have the rest of them."""
    (tmp_path / "file").touch()
    for settings, expected in (
        ({"port_file": tmp_path / "file" / "port"}, "cannot write the port file"),
        ({"data_dir": tmp_path / "file"}, "is a file; choose another directory with TOPICS_DATA_DIR or --data-dir"),
        ({"cold_dir": tmp_path / "file"}, "is a file; set TOPICS_COLD_DIR to a directory"),
        ({"data_dir": server.data_dir}, f"process {server.pid} on "),
        ({"port": server.port}, "something listens there already; stop it, or choose another port with TOPICS_PORT"),
    ):
        with pytest.raises(AssertionError) as refused, ServerProcess(**settings):  # type: ignore[arg-type]
            pass
        assert expected in str(refused.value)
        assert "Traceback" not in str(refused.value)


def test_keys_close_the_api_and_never_show_in_the_log() -> None:
    """AUTH-6: keys and tokens appear in no log line at any level, boot included."""
    with ServerProcess(api_keys="hush-hush:read,other-secret", log_level="debug", probe_auth=True) as own:
        assert own.request("GET", "/v0/topics").status == 401
        assert own.request("GET", "/v0/topics", headers={"Authorization": "Bearer wrong-token"}).status == 401
        assert own.request("GET", "/v0/topics", headers={"Authorization": "Bearer hush-hush"}).status == 200
        assert own.request("GET", "/v0/topics?token=other-secret").status == 401
        own.stop()
        log = own.log()

    assert log
    for secret in ("hush-hush", "other-secret", "wrong-token"):
        assert secret not in log


def test_an_unknown_variable_is_in_the_log() -> None:
    """A typo must not silently do nothing."""
    with ServerProcess(max_topic=3) as own:
        assert "TOPICS_MAX_TOPIC is not a setting of this server" in own.log()
        assert "did you mean TOPICS_MAX_TOPICS?" in own.log()


def test_idle_connections_cannot_take_the_files_of_the_store(tmp_path: Path) -> None:
    """A log file that cannot be opened would stop all writes until a restart; clients are turned away instead."""
    limit = 200
    file = tmp_path / "port"
    serve = f"exec {sys.executable} -m topics serve --port 0 --port-file {file} --data-dir {tmp_path / 'data'}"
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(["bash", "-c", f"ulimit -n {limit}; {serve}"], stderr=subprocess.PIPE)
        )
        stack.callback(process.kill)
        until(file.exists, "the port")
        host, _, port = file.read_text().partition(":")
        api = stack.enter_context(closing(Api(host, int(port))))
        until(lambda: api.get("/v0/ready").status == 200, "the start")
        with ExitStack() as idle:
            for _ in range(limit // 2):
                idle.enter_context(socket.create_connection((host, int(port)), timeout=10))
            other = idle.enter_context(closing(Api(host, int(port))))
            refused = other.get("/v0/health").refused(429, "throttled")
            assert refused == {"limit": "max_connections", "max": limit // 2}
            for _ in range(limit):
                idle.enter_context(socket.create_connection((host, int(port)), timeout=10))
            for _ in range(3):
                # More than a file of the log holds, so that another one is opened.
                api.write("t", *({"data": "x" * 900_000} for _ in range(10)))
        process.terminate()
        assert b"raise the limit of open files" in process.communicate(timeout=30)[1]
