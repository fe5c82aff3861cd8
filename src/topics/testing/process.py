"""A real server in a process of its own, for tests that must cross a socket, a signal or a crash.

`ServerProcess` starts `python -m topics serve` on a free loopback port with a data directory of its own; `start`
returns once the server is ready. Every wait has a deadline, and a failure is reported together with the server's log.
It signals only the process that it started itself.
"""

from __future__ import annotations

import http.client
import json as json_module
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
REQUEST_TIMEOUT_S = 30.0
_POLL_S = 0.01
_NO_BODY = object()


class Response(NamedTuple):
    """What a server answered; `json` is None where the body is not JSON."""

    status: int
    headers: dict[str, str]
    json: Any
    body: bytes


class ServerProcess:
    """A running server, stopped at the end of its `with` block.

    Keyword arguments are settings by their variable, with or without the prefix and in any case: `max_topics=3` and
    `TOPICS_MAX_TOPICS="3"` are the same. Variables of the caller's own environment that begin with `TOPICS_` are not
    passed on, so that a test sees only what it asked for.
    """

    def __init__(self, data_dir: Path | str | None = None, **settings: object) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-test-")
        self._root = Path(self._scratch.name)
        self.data_dir = Path(data_dir) if data_dir is not None else self._root / "data"
        self._port_file = self._root / "port"
        self._log_file = self._root / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = self._build_environ(settings)
        self.host = ""
        self.port = 0

    def _build_environ(self, settings: Mapping[str, object]) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_HOST": "127.0.0.1",
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
            "TOPICS_DATA_DIR": str(self.data_dir),
            "PYTHONUNBUFFERED": "1",
        }
        for name, value in settings.items():
            variable = name.upper() if name.upper().startswith("TOPICS_") else f"TOPICS_{name.upper()}"
            environ[variable] = str(value)
        return environ

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address to put before a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait_ready: bool = True) -> None:
        """Start the server, and return once it listens and, with `wait_ready`, is ready."""
        assert not self.alive, "the server runs already"
        self._port_file.unlink(missing_ok=True)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topics", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_DEADLINE_S
        try:
            self._await_port(deadline)
            if wait_ready:
                self.await_ready(deadline)
        except BaseException:
            self.kill()
            raise

    def _await_port(self, deadline: float) -> None:
        while True:
            text = self._port_file.read_text() if self._port_file.exists() else ""
            if ":" in text:
                self.host, _, port = text.strip().rpartition(":")
                self.host = self.host.strip("[]")
                self.port = int(port)
                return
            self._pause(deadline, "write its port file")

    def await_ready(self, deadline: float | None = None) -> None:
        """Return once `/v0/ready` answers 200; `deadline` is a reading of `time.monotonic`."""
        deadline = deadline if deadline is not None else time.monotonic() + START_DEADLINE_S
        headers = self._authorization()
        while True:
            try:
                if self.request("GET", "/v0/ready", headers=headers).status == 200:
                    return
            except OSError:
                pass
            self._pause(deadline, "be ready")

    def _authorization(self) -> dict[str, str]:
        """A header that opens the probes where `TOPICS_PROBE_AUTH` closes them."""
        secret = self._environ.get("TOPICS_API_KEYS", "").split(",")[0].partition(":")[0].strip()
        return {"Authorization": f"Bearer {secret}"} if secret else {}

    def _pause(self, deadline: float, purpose: str) -> None:
        if not self.alive:
            raise AssertionError(f"the server ended before it could {purpose}:\n{self.log()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the server did not {purpose} in time:\n{self.log()}")
        time.sleep(_POLL_S)

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = _NO_BODY,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Response:
        """Send one request on a connection of its own; `json` is encoded, `body` goes as it is."""
        sent = dict(headers or {})
        if json is not _NO_BODY:
            body = json_module.dumps(json).encode()
        if body is not None and not any(name.lower() == "content-type" for name in sent):
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        received = {name.lower(): value for name, value in answer.getheaders()}
        is_json = received.get("content-type", "").startswith("application/json")
        return Response(answer.status, received, json_module.loads(content) if is_json else None, content)

    def stop(self) -> None:
        """Stop the server with SIGTERM, as an operator does, and assert that it ends with exit code 0."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop on SIGTERM:\n{self.log()}") from None
        self._process = None
        assert code == 0, f"the server ended with exit code {code}:\n{self.log()}"

    def kill(self) -> None:
        """End the process as a crash does; nothing happens if it has ended already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop the server, or leave it dead if it is, and start it again on the same data."""
        if self.alive:
            self.stop()
        else:
            self.kill()
        self.start()

    def close(self) -> None:
        """Stop the server if it runs, and remove what was made for it."""
        try:
            if self.alive:
                self.stop()
        finally:
            self.kill()
            self._scratch.cleanup()

    def log(self) -> str:
        """Everything the server has printed so far, over all its starts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process
