"""Connection: one connection to a server, on asyncio.

The event loop calls in when something arrives, and a timer when nothing does; what uses it waits for either. A stream
that is not read stops reading from its socket, so that its buffer stays bounded.
"""

from __future__ import annotations

import asyncio
import socket
from time import monotonic, perf_counter_ns
from typing import Any, Final, cast

from topics.client.transport import trouble
from topics.client.transport.address import Address
from topics.client.transport.answer import Answer, AnswerParser
from topics.client.transport.request import Request
from topics.client.transport.spin import SPIN_NS, Spin
from topics.errors import TopicsError

READ_BYTES: Final = 128 << 10
"""The size of a connection's buffer: memory that is asked for anew at each answer would cost more than the rest."""
STREAM_BUFFER_BYTES: Final = 1 << 20


class Connection(asyncio.BufferedProtocol):
    """One connection to a server, through a proxy and TLS where the address asks for them."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self._parser = AnswerParser()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._silence_s = self._until = self._fires = 0.0
        self._head_only = self._streaming = False
        self._buffered = 0
        self._error: Exception | None = None
        self._spin = Spin()
        self._spinning = self._looks = False
        self._awake_until_ns = 0
        self.used = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected, or secured."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """Bytes have arrived."""
        parser = self._parser
        try:
            parser.feed(self._buffer[:count])
        except ValueError as error:
            self.fail(error)
            return
        if self._streaming:
            self._buffered += count
            if self._buffered > STREAM_BUFFER_BYTES and self._transport is not None:
                self._transport.pause_reading()
        self._heard = 0.0
        if parser.complete or (self._head_only and parser.head_complete) or self._streaming:
            self._wake()

    def eof_received(self) -> bool:
        """The other side has closed."""
        self._ended(EOFError("the connection was closed"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        self._ended(error or EOFError("the connection was closed"))

    def _ended(self, error: Exception) -> None:
        if self._error is None:
            try:
                self._parser.eof()
            except EOFError as early:
                error = early if isinstance(error, EOFError) else error
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """It is over: whatever waits for it gets the error."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Called by what uses it.

    @classmethod
    async def connect(cls, address: Address, timeout_s: float) -> Connection:
        """A new connection, within the time."""
        loop = asyncio.get_running_loop()
        connection = cls(address, loop)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._connect()
        except (OSError, ValueError, EOFError) as error:
            connection.close()
            raise trouble.explain(error, address, sent=False) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(self) -> None:
        address, loop = self._address, self._loop
        host, port = address.peer
        direct: dict[str, Any] = {}
        if address.tls is not None and address.tunnel is None:
            direct = {"ssl": address.tls, "server_hostname": address.host}
        await loop.create_connection(lambda: self, host, port, **direct)
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tunnel is None:
            return
        self._parser.expect()
        self._transport.write(address.tunnel)
        self._head_only = True
        while not self._parser.head_complete:
            await self._wait()
        self._head_only = False
        if self._parser.status >= 300:
            raise trouble.refused_tunnel(address, self._parser.status)
        self._parser = AnswerParser()
        assert address.tls is not None
        secured = await loop.start_tls(self._transport, self, address.tls, server_hostname=address.host)
        assert secured is not None
        self._transport = secured

    @property
    def stale(self) -> bool:
        """Whether it is over, or has sent what nobody asked for."""
        return self._error is not None or self._parser.surplus

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        parser = self._parser
        return parser.complete and parser.keep_alive and not parser.surplus and self._error is None

    async def exchange(self, request: Request) -> Answer:
        """Send a request and return its answer."""
        parser = self._parser
        self._begin(request)
        self._stay_awake()
        try:
            while not parser.complete:
                if self._error is not None:
                    raise self._error
                self._waiter = self._loop.create_future()
                await self._waiter
        except (OSError, ValueError, EOFError) as error:
            raise self._trouble(error) from None
        finally:
            self._waiter = None
            self._until = 0.0
            self._stop_spinning(found=True)
        self.used = True
        return parser.answer()

    def _stay_awake(self) -> None:
        """Keep the loop from sleeping for a moment, if the answer is likely to come in it."""
        if self._spin.begin():
            self._spinning = True
            self._awake_until_ns = perf_counter_ns() + SPIN_NS
            if not self._looks:
                self._looks = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        """A turn of the loop in which something is to be done only looks at the sockets."""
        self._looks = self._spinning and perf_counter_ns() <= self._awake_until_ns
        if self._looks:
            self._loop.call_soon(self._look)
        else:
            self._stop_spinning(found=False)

    def _stop_spinning(self, *, found: bool) -> None:
        if self._spinning:
            self._spinning = False
            self._spin.end(found=found)

    async def open(self, request: Request) -> Answer | None:
        """Send a request whose answer is a stream; the answer where it is none (a refusal)."""
        parser = self._parser
        self._begin(request)
        self._head_only = True
        try:
            while not (parser.complete or (parser.head_complete and parser.status == 200)):
                await self._wait()
        except (OSError, ValueError, EOFError) as error:
            raise self._trouble(error) from None
        finally:
            self._until = 0.0
            self._head_only = False
        self.used = True
        if parser.status != 200:
            return parser.answer()
        self._streaming = True
        return None

    def _trouble(self, error: Exception) -> TopicsError:
        return trouble.explain(error, self._address, sent=True, reused=self.used and not self._parser.started)

    def _begin(self, request: Request) -> None:
        """Send a request, and watch the time."""
        self._parser.expect()
        now = monotonic()
        try:
            if self._error is not None:
                raise self._error
            if request.until <= now or self._transport is None:
                raise TimeoutError
            self._transport.write(request.encode(self._address))
        except (OSError, ValueError, EOFError) as error:
            raise self._trouble(error) from None
        self._heard = now
        self._silence_s = request.timeout_s or request.until - now
        self._until = request.until
        # One timer serves many requests: it looks what is due when it fires.
        due = min(now + self._silence_s, request.until)
        if self._timer is None or due < self._fires:
            if self._timer is not None:
                self._timer.cancel()
            self._fires = due
            self._timer = self._loop.call_later(due - now, self._check)

    async def _wait(self) -> None:
        """Wait until something has happened; raises what went wrong."""
        if self._error is not None:
            raise self._error
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
        self._raise_unless_complete()

    def _raise_unless_complete(self) -> None:
        if self._error is not None and not self._parser.complete:
            raise self._error

    def _check(self) -> None:
        """The time is up, unless something was heard since the timer was set, or nothing is waited for."""
        self._timer = None
        if not self._until:
            return
        now = monotonic()
        self._heard = self._heard or now
        due = min(self._heard + self._silence_s, self._until)
        if now >= due:
            self.fail(TimeoutError())
        else:
            self._fires = due
            self._timer = self._loop.call_later(due - now, self._check)

    async def read(self, timeout_s: float) -> bytes:
        """What comes next of a stream; nothing where it has ended."""
        parser = self._parser
        try:
            while True:
                if body := parser.take_body():
                    if self._buffered > STREAM_BUFFER_BYTES and self._transport is not None:
                        self._transport.resume_reading()
                    self._buffered = 0
                    return body
                if parser.complete:
                    return b""
                async with asyncio.timeout(timeout_s):
                    await self._wait()
        except EOFError:
            return b""
        except (OSError, ValueError) as error:
            raise trouble.explain(error, self._address, sent=True) from None

    def close(self) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
