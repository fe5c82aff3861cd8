"""An S3 server on this machine, in a process of its own.

It checks the condition of a put and then writes, so two puts at the same moment may both succeed, unlike in a real
store. A test that needs an order of events makes it, and never lets two writers run freely.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.harness.api import free_port, until

BUCKET = "lakes"
SECRET = "never-to-be-shown"
START_S = 60


class ObjectStore:
    """A running server with one bucket."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a server while the context lasts."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(port), "the object store answers", START_S)
        store = ObjectStore(port)
        store.make_bucket()
        yield store
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Turnstile:
    """A way to the store on which something happens before the first put to an object arrives: once it was on its way.

    Each connection is passed on as it is, so what the store decides is decided by the store.
    """

    def __init__(self, store: ObjectStore, object: str, before: Callable[[], None]) -> None:
        self._port = store.port
        self._object = object.encode()
        self._before: Callable[[], None] | None = before
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join(START_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                store = socket.create_connection(("127.0.0.1", self._port))
                for pair in ((client, store), (store, client)):
                    self._threads.append(threading.Thread(target=self._pass, args=pair, daemon=True))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                if chunk.startswith(b"PUT ") and self._object in chunk.partition(b"\r")[0] and self._before is not None:
                    before, self._before = self._before, None
                    before()
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def use(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take keys and endpoint from the environment, as users do."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
