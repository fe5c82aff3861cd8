"""Both kinds of client through one set of tests, and what stands between a client and its server.

`Bridge` makes an AsyncClient, and whatever it returns, look like a Client: a test that is given either cannot tell
them apart, so that they cannot come to differ. `Relay` is TLS before a server, and `Proxy` an HTTP proxy.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CERTIFICATES = Path(__file__).with_name("tls")
CA = CERTIFICATES / "ca.pem"
"""The authority of the certificate that a Relay shows, for `localhost`."""


class Bridge:
    """An asynchronous object, used from outside its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return self._crossed(getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._target(*args, **kwargs)
        return self._crossed(self._loop.run_until_complete(result) if inspect.isawaitable(result) else result)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        assert isinstance(self._target, AsyncIterator)
        try:
            return self._loop.run_until_complete(anext(self._target))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(*error))

    def _crossed(self, value: Any) -> Any:
        is_ours = type(value).__module__.startswith("topics.client.") and type(value).__name__.startswith("Async")
        return Bridge(self._loop, value) if is_ours or inspect.ismethod(value) else value


class Relay:
    """A port that passes bytes on to another, after a handshake of TLS if it has a certificate."""

    def __init__(self, host: str, port: int, *, tls: bool) -> None:
        self._to = (host, port)
        self._context: ssl.SSLContext | None = None
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(CERTIFICATES / "server.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[Relay]:
        """Serve until the block ends."""
        self._start(self._accept)
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            for thread in self._threads:
                thread.join(10)
                assert not thread.is_alive()

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(accepted)
            self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        try:
            if self._context is not None:
                accepted = self._context.wrap_socket(accepted, server_side=True)
                self._sockets.append(accepted)
            first, to = self._first(accepted)
            onward = socket.create_connection(to)
            self._sockets.append(onward)
            if first:
                onward.sendall(first)
        except OSError:
            accepted.close()
            return
        self._start(self._copy, onward, accepted)
        self._copy(accepted, onward)

    def _first(self, accepted: socket.socket) -> tuple[bytes, tuple[str, int]]:
        return b"", self._to

    def _copy(self, source: socket.socket, dest: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                dest.sendall(data)
        for each in (source, dest):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Proxy(Relay):
    """An HTTP proxy: it opens tunnels (CONNECT), and passes on what comes in absolute form. `seen` are first lines."""

    def __init__(self) -> None:
        super().__init__("", 0, tls=False)

    def _first(self, accepted: socket.socket) -> tuple[bytes, tuple[str, int]]:
        head = b""
        while b"\r\n\r\n" not in head:
            data = accepted.recv(65_536)
            if not data:
                raise OSError("closed")
            head += data
        self.seen.append(head.split(b"\r\n")[0])
        method, target, _ = self.seen[-1].split(b" ")
        if method == b"CONNECT":
            host, _, port = target.decode().rpartition(":")
            accepted.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return b"", ("127.0.0.1", int(port))
        authority = target.split(b"/")[2].decode()
        host, _, port = authority.rpartition(":")
        return head, (host, int(port))
