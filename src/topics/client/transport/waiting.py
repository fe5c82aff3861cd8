"""Connections for asyncio: a bounded pool of them, and the couriers that tasks talk through.

A task that is cancelled while it waits for an answer closes its connection: an answer that comes later belongs to
nobody. Connections belong to the event loop that made them. A client may be used on one event loop after the other,
not on two at a time. `Courier` is what one task, or one follower, talks through; `interrupt` ends what it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from threading import get_ident
from time import monotonic

from topics.client.errors import Closed, TimedOut, Unreachable
from topics.client.transport import trouble
from topics.client.transport.address import Address
from topics.client.transport.answer import Answer
from topics.client.transport.request import Request
from topics.client.transport.waiting_connection import Connection


class Pool:
    """At most `size` connections to one server."""

    def __init__(self, address: Address, *, size: int, connect_timeout_s: float) -> None:
        self.address = address
        self._size = size
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []
        self._open = 0
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self.streams: set[Connection] = set()
        """What is being read, so that it ends with the client."""

    def take_idle(self) -> Connection | None:
        """A connection that is there and idle, for one exchange."""
        loop = self._loop
        # To ask for the running loop costs a call of the kernel. Two loops of a thread do not run at the same time.
        if self._idle and loop is not None and loop.is_running() and self._thread == get_ident() and not self._closed:
            connection = self._idle.pop()
            if not connection.stale:
                return connection
            self._discard(connection)
        return None

    async def take(self, until: float) -> Connection:
        """A connection for one exchange; give it back with `give`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._move(loop)
        while True:
            if self._closed:
                raise Closed("the client is closed")
            while self._idle:
                connection = self._idle.pop()
                if not connection.stale:
                    return connection
                self._discard(connection)
            if self._open < self._size:
                break
            await self._turn(loop, until)
        self._open += 1
        try:
            left_s = until - monotonic()
            if left_s <= 0:
                raise TimedOut(f"there is no time left to connect to {self.address}")
            return await Connection.connect(self.address, min(self._connect_timeout_s, left_s))
        except BaseException:
            self._open -= 1
            self._next()
            raise

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin on an event loop: the first one, or one after another, each of which takes its connections with it."""
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("an AsyncClient belongs to one event loop at a time: make one for each")
        # What they leave closes with the last reference, and says so: an event loop that is gone can close nothing.
        self._idle = []
        self._waiting.clear()
        self.streams.clear()
        self._open = 0
        self._loop = loop
        self._thread = get_ident()

    async def _turn(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        waiter = loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(until - monotonic()):
                await waiter
        except TimeoutError:
            raise trouble.exhausted(self.address, self._size) from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._next()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def give(self, connection: Connection) -> None:
        """Put a connection back, or close it."""
        if connection.reusable and not self._closed:
            self._idle.append(connection)
        else:
            self._discard(connection)
        self._next()

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._open -= 1

    async def close(self) -> None:
        """Close what is idle now, end the streams, and close the rest when it comes back."""
        self._closed = True
        if self._loop is not None and self._loop.is_closed():
            self._move(asyncio.get_running_loop())
        while self._idle:
            self._discard(self._idle.pop())
        for stream in self.streams:
            stream.close()
        self.streams.clear()
        while self._waiting:
            self._next()
        # Let the event loop close the sockets before it may be closed itself.
        await asyncio.sleep(0)


class Courier:
    """What one task talks through: one exchange, pause or stream at a time, each of which can be interrupted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connection: Connection | None = None
        self._stream: Connection | None = None
        self._paused: asyncio.Future[None] | None = None
        self.interrupted = False

    def interrupt(self) -> None:
        """End what is waited for now, and refuse what comes next. Only a task of the same event loop may do this."""
        self.interrupted = True
        for connection in (self._connection, self._stream):
            if connection is not None:
                connection.fail(EOFError("it was stopped"))
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def exchange(self, request: Request) -> Answer:
        """The answer to a request."""
        self._check()
        connection = self._connection = self._pool.take_idle() or await self._pool.take(request.until)
        try:
            self._check()
            return await connection.exchange(request)
        except Unreachable:
            self._check()
            raise
        finally:
            self._connection = None
            self._pool.give(connection)

    async def open(self, request: Request) -> Answer | None:
        """Open a stream, which `read` reads; the answer where it was refused."""
        self._check()
        connection = self._connection = await self._pool.take(request.until)
        opened = False
        try:
            self._check()
            refused = await connection.open(request)
            opened = refused is None
        except Unreachable:
            self._check()
            raise
        finally:
            self._connection = None
            if not opened:
                self._pool.give(connection)
        if opened:
            self._stream = connection
            self._pool.streams.add(connection)
        return refused

    async def read(self, timeout_s: float) -> bytes:
        """What comes next of the stream; nothing where it has ended."""
        try:
            data = b"" if self._stream is None else await self._stream.read(timeout_s)
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

    def _check(self) -> None:
        if self.interrupted:
            raise Closed("it was stopped")

    async def pause(self, seconds: float) -> None:
        """Wait."""
        self._check()
        self._paused = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._paused, seconds)
        except TimeoutError:
            return
        finally:
            self._paused = None
        raise Closed("it was stopped")


class SharedCourier(Courier):
    """What any number of tasks make single calls through: nothing to interrupt, and no stream."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def exchange(self, request: Request) -> Answer:
        """The answer to a request."""
        connection = self._pool.take_idle() or await self._pool.take(request.until)
        try:
            return await connection.exchange(request)
        finally:
            self._pool.give(connection)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
