"""Connections for threads: a bounded pool of sockets, each used by one thread at a time.

A connection goes back to the pool only after a whole answer that allows another request. Before one is used again it
is looked at: a server that has closed it in the meantime costs nothing. `Courier` is what one thread, or one follower,
talks through; `interrupt` ends whatever it waits for, from any thread and from a signal handler.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import sys
import threading
import time
from functools import partial
from typing import Final

from topics.client.errors import Closed, TimedOut, Unreachable
from topics.client.transport import forks, trouble
from topics.client.transport.address import Address
from topics.client.transport.answer import Answer, AnswerParser
from topics.client.transport.request import Request
from topics.client.transport.spin import Spin

READ_BYTES: Final = 128 << 10
"""The size of a connection's buffer: memory that is asked for anew at each answer would cost more than the rest."""
IDLE_S: Final = 0.5
"""A connection that was used within this time is used again without a look at it, if the request may be repeated."""
_KERNEL_KEEPS_TIME: Final = sys.platform in ("linux", "darwin")


class Connection:
    """One socket to a server, through a proxy and TLS where the address asks for them."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect, within the time."""
        self._address = address
        self._parser = AnswerParser()
        self._timeout_s = timeout_s
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.used = False
        self.idle_since = 0.0
        until = time.monotonic() + timeout_s
        try:
            self._socket = socket.create_connection(address.peer, timeout_s)
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._secure(until)
            except BaseException:
                self._socket.close()
                raise
        except (OSError, ValueError, EOFError) as error:
            raise trouble.explain(error, address, sent=False) from None
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._is_there = partial(self._poller.poll, 0)
        self._spin = Spin()
        self._limit(timeout_s)

    def _secure(self, until: float) -> None:
        address = self._address
        if address.tunnel is not None:
            self._socket.sendall(address.tunnel)
            self._parser.expect()
            while not self._parser.head_complete:
                self._receive(None, until)
            if self._parser.status >= 300:
                raise trouble.refused_tunnel(address, self._parser.status)
            self._parser = AnswerParser()
        if address.tls is not None:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            self._socket = address.tls.wrap_socket(self._socket, server_hostname=address.host)

    @property
    def stale(self) -> bool:
        """Whether the other side has closed it, or has sent what nobody asked for."""
        try:
            if not self._poller.poll(0):
                return False
            sock = self._socket
            if not isinstance(sock, ssl.SSLSocket):
                return True
            # What can be read may be a ticket of TLS, which is no answer.
            sock.setblocking(False)
            try:
                sock.read(1)
            finally:
                sock.settimeout(self._timeout_s)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            pass
        return True

    def exchange(self, request: Request) -> Answer:
        """Send a request and return its answer."""
        self._send(request)
        parser = self._parser
        try:
            self._spin.until(self._is_there)
            while not parser.complete:
                self._receive(request.timeout_s, request.until)
        except (OSError, ValueError, EOFError) as error:
            raise trouble.explain(error, self._address, sent=True, reused=self.used and not parser.started) from None
        self.used = True
        return parser.answer()

    def open(self, request: Request) -> Answer | None:
        """Send a request whose answer is a stream; the answer where it is none (a refusal)."""
        self._send(request)
        parser = self._parser
        try:
            while not (parser.complete or (parser.head_complete and parser.status == 200)):
                self._receive(request.timeout_s, request.until)
        except (OSError, ValueError, EOFError) as error:
            raise trouble.explain(error, self._address, sent=True, reused=self.used and not parser.started) from None
        self.used = True
        return parser.answer() if parser.complete and parser.status != 200 else None

    def read(self, timeout_s: float) -> bytes:
        """What comes next of a stream; nothing where it has ended."""
        parser = self._parser
        try:
            while True:
                if body := parser.take_body():
                    return body
                if parser.complete:
                    return b""
                self._receive(timeout_s, time.monotonic() + timeout_s)
        except EOFError:
            return b""
        except (OSError, ValueError) as error:
            raise trouble.explain(error, self._address, sent=True) from None

    def _send(self, request: Request) -> None:
        self._parser.expect()
        try:
            self._wait(request.timeout_s, request.until)
            self._socket.sendall(request.encode(self._address))
        except (OSError, ValueError) as error:
            # A part may have arrived, and with it the whole request.
            raise trouble.explain(error, self._address, sent=True, reused=self.used) from None

    def _wait(self, timeout_s: float | None, until: float) -> None:
        """Let the socket wait as long as the server may be silent, and no longer than there is time."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        wanted = left_s if timeout_s is None else min(timeout_s, left_s)
        # To set it costs a call of the kernel.
        if wanted != self._timeout_s:
            self._limit(wanted)

    def _limit(self, timeout_s: float) -> None:
        """Let the kernel keep the time where it can: Python would ask it before each send and each receive."""
        self._timeout_s = timeout_s
        if not _KERNEL_KEEPS_TIME or isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(timeout_s)
            return
        seconds, rest = divmod(max(1, int(timeout_s * 1_000_000)), 1_000_000)
        interval = struct.pack("ll", seconds, rest)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def _receive(self, timeout_s: float | None, until: float) -> None:
        parser = self._parser
        if parser.started:
            self._wait(timeout_s, until)
        count = self._socket.recv_into(self._buffer)
        if count:
            parser.feed(self._buffer[:count])
        else:
            parser.eof()

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        parser = self._parser
        return parser.complete and parser.keep_alive and not parser.surplus

    def shut(self) -> None:
        """End it from another thread: a thread that waits for it gets an error at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self._socket.close()


class Pool:
    """At most `size` connections to one server."""

    def __init__(self, address: Address, *, size: int, connect_timeout_s: float) -> None:
        self.address = address
        self._size = size
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []
        self._open = 0
        self._closed = False
        self._waiting = 0
        self._forks = forks.count
        self._changed = threading.Condition(threading.Lock())
        self.streams: set[Connection] = set()
        """What is being read, so that it ends with the client."""

    def take(self, request: Request) -> Connection:
        """A connection for one exchange; give it back with `give`."""
        if self._forks != forks.count:
            self._forked()
        # Lists are safe to use from several threads, and a lock here would cost more than the rest.
        try:
            connection: Connection | None = self._idle.pop()
        except IndexError:
            connection = self._wait(request.until)
        if connection is not None:
            fresh = request.repeatable and time.monotonic() - connection.idle_since < IDLE_S
            if fresh or not connection.stale:
                return connection
        try:
            if connection is not None:
                connection.close()
            left_s = request.until - time.monotonic()
            if left_s <= 0:
                raise TimedOut(f"there is no time left to connect to {self.address}")
            return Connection(self.address, min(self._connect_timeout_s, left_s))
        except BaseException:
            self._lost()
            raise

    def _wait(self, until: float) -> Connection | None:
        """A connection that is idle, or None where there is room for another."""
        with self._changed:
            # In this order: a thread that gives one back looks at `_waiting` after it has put it there.
            self._waiting += 1
            try:
                while True:
                    if self._closed:
                        raise Closed("the client is closed")
                    with contextlib.suppress(IndexError):
                        return self._idle.pop()
                    if self._open < self._size:
                        self._open += 1
                        return None
                    if not self._changed.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                        raise trouble.exhausted(self.address, self._size)
            finally:
                self._waiting -= 1

    def _forked(self) -> None:
        """The connections belong to the process that this one was forked from."""
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._idle = []
        self.streams = set()
        self._open = 0
        self._forks = forks.count

    def give(self, connection: Connection) -> None:
        """Put a connection back, or close it."""
        if not connection.reusable:
            connection.close()
            self._lost()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._waiting or self._closed:
            with self._changed:
                self._changed.notify()
                if self._closed:
                    self._close_idle()

    def _lost(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def close(self) -> None:
        """Close what is idle now, end the streams, and close the rest when it comes back."""
        with self._changed:
            self._closed = True
            self._close_idle()
            for stream in list(self.streams):
                stream.shut()
            self._changed.notify_all()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class Courier:
    """What one thread talks through: one exchange, pause or stream at a time, each of which can be interrupted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connection: Connection | None = None
        self._stream: Connection | None = None
        self.interrupted = False
        # A lock that is never free before the end: to wait for it is to pause, and to free it is allowed in a signal
        # handler, which an Event does not promise.
        self._ended = threading.Lock()
        self._ended.acquire()

    def interrupt(self) -> None:
        """End what is waited for now, and refuse what comes next."""
        if not self.interrupted:
            self.interrupted = True
            with contextlib.suppress(RuntimeError):
                self._ended.release()
        for connection in (self._connection, self._stream):
            if connection is not None:
                connection.shut()

    def exchange(self, request: Request) -> Answer:
        """The answer to a request."""
        connection = self._connection = self._take(request)
        try:
            self._check()
            return connection.exchange(request)
        except Unreachable:
            self._check()
            raise
        finally:
            self._connection = None
            self._pool.give(connection)

    def open(self, request: Request) -> Answer | None:
        """Open a stream, which `read` reads; the answer where it was refused."""
        connection = self._connection = self._stream = self._take(request)
        opened = False
        try:
            self._check()
            refused = connection.open(request)
            opened = refused is None
            if opened:
                self._pool.streams.add(connection)
            return refused
        finally:
            self._connection = None
            if not opened:
                self._stream = None
                self._pool.give(connection)

    def read(self, timeout_s: float) -> bytes:
        """What comes next of the stream; nothing where it has ended."""
        if self._stream is None:
            return b""
        try:
            data = self._stream.read(timeout_s)
        except Unreachable:
            self._check()
            raise
        if not data:
            self._check()
        return data

    def close_stream(self) -> None:
        """End the stream, if there is one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._pool.streams.discard(stream)
            self._pool.give(stream)

    def _take(self, request: Request) -> Connection:
        self._check()
        return self._pool.take(request)

    def _check(self) -> None:
        if self.interrupted:
            raise Closed("it was stopped")

    def pause(self, seconds: float) -> None:
        """Wait."""
        if self._ended.acquire(timeout=seconds):
            self._ended.release()
            raise Closed("it was stopped")


class SharedCourier(Courier):
    """What any number of threads make single calls through: nothing to interrupt, and no stream."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def exchange(self, request: Request) -> Answer:
        """The answer to a request."""
        connection = self._pool.take(request)
        try:
            return connection.exchange(request)
        finally:
            self._pool.give(connection)

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
