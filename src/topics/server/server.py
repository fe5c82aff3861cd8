"""Server: one process from bind to exit.

Start: bind, log where it listens, recover, serve. Stop on SIGTERM or SIGINT: accept no more connections, answer what is
in flight (bounded by `TOPICS_DRAIN_TIMEOUT_MS`) while `/v0/ready` answers `shutting_down`, flush, exit 0.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import uvloop

from topics import __version__
from topics.clock import SystemClock
from topics.engine import Engine, Limits
from topics.engine.log.archive import Shelf
from topics.engine.upkeep.sealer import GATHER_NS
from topics.engine.upkeep.upkeep import Upkeep, UpkeepSettings
from topics.errors import Unauthorized
from topics.server import descriptors, logs, memory, service_manager, startup_errors
from topics.server.api.principal import REVOKED
from topics.server.assembly import Assembly
from topics.server.auth import Keys
from topics.server.delivery.channel import Unsynced
from topics.server.driver import Wakeup
from topics.server.http.connection import Connection
from topics.server.http.connections import Connections
from topics.server.http.http2 import Http2
from topics.server.http.limits import ConnectionLimits
from topics.settings import BadSettings, Settings
from topics.storage import marked
from topics.storage.damage import UnknownFormat, Unusable
from topics.storage.disk import Locked, RealDisk
from topics.storage.store import Store
from topics.storage.wal.shard_files import FILE_BYTES

log = logging.getLogger("topics")

T = TypeVar("T", bound=msgspec.Struct)

EXIT_CANNOT_LISTEN: Final = 1
EXIT_CANNOT_STORE: Final = 3
RECOVERY_SLICE_S: Final = 0.02
AHEAD_MS_MAX: Final = 60_000
BACKLOG: Final = 4096
UNSENT_BYTES_MAX: Final = 256 << 10
"""What the kernel keeps of an answer beyond what is on its way to the client."""
RESERVE_BYTES: Final = 16 << 20
FLIPS_PAUSE_NS: Final = 100_000_000
"""How often the flags of deleted records are written to their segments, at most."""
SWITCH_S: Final = 0.001
"""How long a thread may keep the interpreter while the loop waits for it. A seal of tagged records runs Python for tens
of milliseconds, and the loop gives the interpreter up with each call of the system: it waited 5 ms for each of them
with the interval that is usual."""


class Server:
    """The process that serves one data directory."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; the exit code."""
        logs.set_up(self._settings)
        memory.tune()
        sys.setswitchinterval(SWITCH_S)
        # Before there are threads (descriptors.py).
        limits = self._connection_limits()
        return uvloop.run(self._serve(limits))

    async def _serve(self, limits: ConnectionLimits) -> int:
        """Build everything, serve, and take it down again."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.on_loop_error)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        clock = SystemClock()
        unsynced = Unsynced()
        store = self._store(clock, unsynced)
        if not self._open(store):
            return EXIT_CANNOT_STORE
        wakeup = Wakeup(loop)
        settings = self._part(UpkeepSettings)
        shelf = Shelf(store, settings.segment_max_events, settings.segment_max_bytes)
        engine = Engine(clock, store, self._part(Limits), shelf=shelf, wake=wakeup.wake)
        upkeep = Upkeep(engine, store, settings, gather_ns=GATHER_NS)
        assembly = Assembly(
            self._settings,
            self._keys,
            loop,
            engine,
            wakeup,
            unsynced,
            upkeep=upkeep,
            cache=store.segments.tiers.cache,
            replayed=lambda: store.history.progress,
        )
        connections = Connections(assembly.app, loop, limits, assembly.turns, assembly.account, Http2, assembly.traffic)
        if self._settings.api_keys_file is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload_keys, assembly, connections)
        code = await self._run(assembly, connections, store, upkeep, stop)
        connections.stop()
        assembly.driver.stop()
        if code == 0 and store.shards:
            upkeep.close()
        store.close()
        if code == 0:
            log.info("stopped")
        return code

    def _reload_keys(self, assembly: Assembly, connections: Connections) -> None:
        """SIGHUP: read the file of keys again. Requests that come from now on are judged by what it says."""
        try:
            revoked = self._keys.reload()
        except BadSettings as error:
            log.error("the keys stay as they were: %s", error)
            return
        connections.revoke(lambda route: route.principal in revoked, Unauthorized(REVOKED))
        assembly.revoke(revoked)
        log.info("keys: %s", ", ".join(self._keys.key_ids()))

    async def _run(
        self, assembly: Assembly, connections: Connections, store: Store, upkeep: Upkeep, stop: asyncio.Event
    ) -> int:
        """Listen, recover, serve until `stop`, drain; the exit code."""
        listener = await self._listen(connections)
        if listener is None:
            return EXIT_CANNOT_LISTEN
        connections.start()
        trimming = memory.Trimming(asyncio.get_running_loop())
        trimming.start()
        try:
            recovered = await self._recover(assembly.engine, store, upkeep, stop)
        except (Unusable, UnknownFormat, OSError) as error:
            log.error("%s", startup_errors.cannot_store(self._settings, error))
            listener.close()
            return EXIT_CANNOT_STORE
        if recovered:
            memory.Collector().start()
            assembly.phase.serve()
            assembly.driver.begin()
            assembly.governor.start()
            service_manager.notify("READY=1")
            await stop.wait()
        log.info("stopping: finishing what is in flight")
        service_manager.notify("STOPPING=1")
        assembly.phase.drain()
        listener.close()
        if not await connections.drain(self._settings.drain_timeout_ms / 1000):
            log.warning("some requests did not finish within %s ms", self._settings.drain_timeout_ms)
        assembly.turns.finish()
        trimming.stop()
        assembly.governor.stop()
        assembly.parking.stop()
        await assembly.driver.run_until_idle()
        return 0

    async def _listen(self, connections: Connections) -> asyncio.Server | None:
        """Bind, and log where; None, with the reason in the log, where that is not possible."""
        settings = self._settings
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: Connection(connections), settings.host, settings.port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            log.error("%s", startup_errors.cannot_listen(settings, error))
            return None
        _set_options(listener)
        try:
            self._announce(listener)
        except OSError as error:
            log.error("%s", startup_errors.cannot_announce(settings, error))
            listener.close()
            return None
        return listener

    def _store(self, clock: SystemClock, unsynced: Unsynced) -> Store:
        settings = self._settings
        store = Store(
            str(settings.data_dir),
            disk=RealDisk(),
            clock=clock,
            shards=settings.wal_shards,
            min_free_bytes=max(settings.min_free_bytes, settings.wal_shards * FILE_BYTES),
            reserve_bytes=RESERVE_BYTES,
            cold_directory=None if settings.cold_dir is None else str(settings.cold_dir),
            on_synced=unsynced.synced,
        )
        store.segments.flips.pause_ns = FLIPS_PAUSE_NS
        return store

    def _open(self, store: Store) -> bool:
        """Take the data directory; False, with the reason in the log, where that is not possible."""
        cold_dir = self._settings.cold_dir
        if cold_dir is not None and cold_dir.exists() and not cold_dir.is_dir():
            # One that is missing may be mounted later; a file never becomes a directory.
            log.error("cannot use the cold directory %s: it is a file; set TOPICS_COLD_DIR to a directory", cold_dir)
            return False
        try:
            marked.refuse(store.disk, store.directory)
            store.open()
        except (Locked, UnknownFormat, OSError) as error:
            log.error("%s", startup_errors.cannot_store(self._settings, error))
            return False
        return True

    def _part(self, kind: type[T]) -> T:
        """The settings that have a name in `kind`."""
        return kind(**{name: getattr(self._settings, name) for name in kind.__struct_fields__})

    @staticmethod
    async def _recover(engine: Engine, store: Store, upkeep: Upkeep, stop: asyncio.Event) -> bool:
        """Replay the data directory in slices, so that probes are answered at the same time; False if `stop` is set."""
        started = time.monotonic()
        pause = started + RECOVERY_SLICE_S
        for _ in upkeep.recover():
            if time.monotonic() >= pause:
                await asyncio.sleep(0)
                if stop.is_set():
                    return False
                pause = time.monotonic() + RECOVERY_SLICE_S
        log.info(
            "recovered %d topics, %d live records, %d frames in %.2f s",
            len(engine.topics), engine.totals.count, store.history.frames, time.monotonic() - started,
        )  # fmt: skip
        warn_of_clock(engine)
        return True

    def _connection_limits(self) -> ConnectionLimits:
        allowed, refused = descriptors.allot(self._settings, BACKLOG)
        wanted = self._settings.max_connections
        if allowed < wanted:
            log.log(
                logging.INFO if allowed > wanted // 2 else logging.WARNING,
                "this process may open too few files for max_connections %d: it takes %d connections; "
                "raise the limit of open files (ulimit -n, LimitNOFILE=)",
                wanted, allowed,
            )  # fmt: skip
        shared = {"max_connections": allowed, "max_refused": refused}
        names = set(ConnectionLimits.__struct_fields__) - shared.keys()
        return ConnectionLimits(**shared, **{name: getattr(self._settings, name) for name in names})

    def _announce(self, listener: asyncio.Server) -> None:
        host, port = listener.sockets[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._keys:
            log.warning("no keys are configured: auth is DISABLED and anyone who reaches %s may do everything", address)
        else:
            log.info("keys: %s", ", ".join(self._keys.key_ids()))
        log.info("topics %s listens on http://%s", __version__, address)
        if self._settings.port_file is not None:
            _write_whole(self._settings.port_file, address)


def _set_options(listener: asyncio.Server) -> None:
    """Tell the kernel what connections should be like; accepts inherit it.

    It probes silent ones, so that a stream to a machine that is gone ends. And it takes no more than a part of a large
    answer at once: a copy of megabytes into its buffers would hold up everybody, and what it holds nobody counts.
    """
    for listening in listener.sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", 60),
            ("TCP_KEEPINTVL", 15),
            ("TCP_KEEPCNT", 4),
            ("TCP_NOTSENT_LOWAT", UNSENT_BYTES_MAX),
        ):
            if hasattr(socket, option):
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader that waits for it never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n")
    temporary.replace(path)


def warn_of_clock(engine: Engine) -> None:
    """Say so where records are from a time that this machine's clock has not reached."""
    ahead_ms = max((topic.last_ts for topic in engine.topics.values()), default=0) - engine.clock.now_ms()
    if ahead_ms > AHEAD_MS_MAX:
        log.warning(
            "the newest record is %d s ahead of this machine's clock: the clock is wrong, or was; "
            "until it has caught up, new records have the time of the newest one of their topic",
            ahead_ms // 1000,
        )
