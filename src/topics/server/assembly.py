"""Assembly: every object of a serving process above the engine, each built once with what it needs.

This is the place to see what depends on what: read it from top to bottom, nothing is connected later. `Server` decides
when things happen; a test builds the same with a loop and a clock of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from topics.engine import Engine
from topics.engine.upkeep.upkeep import Upkeep
from topics.server.api.attempts import Attempts
from topics.server.api.backups import BackupHandlers
from topics.server.api.blocks import BlockHandlers
from topics.server.api.console import Console
from topics.server.api.diff import DiffHandler
from topics.server.api.large_writes import LargeWrites
from topics.server.api.library import Library
from topics.server.api.metrics import Metrics
from topics.server.api.overview import Overview
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal
from topics.server.api.probes import Probes
from topics.server.api.queues import QueueHandlers
from topics.server.api.records import RecordHandlers
from topics.server.api.routers import RouterHandlers
from topics.server.api.topics import TopicHandlers
from topics.server.app import App
from topics.server.auth import Keys
from topics.server.delivery.channel import Unsynced
from topics.server.delivery.delivery import Delivery
from topics.server.delivery.watch import Watch
from topics.server.delivery.websocket import WebSockets
from topics.server.delivery.work import Work
from topics.server.driver import Driver, Wakeup
from topics.server.flow.admission import Admission
from topics.server.flow.governor import Governor
from topics.server.flow.parking import Parking
from topics.server.flow.pressure import Pressure
from topics.server.flow.slots import Slots
from topics.server.http.account import Account
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.server.openapi.reference import Reference
from topics.server.origins import Origins
from topics.server.routes import Routes, rows
from topics.settings import Settings
from topics.storage.segment.cache import BlockCache


class Assembly:
    """What serves an engine."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        wakeup: Wakeup,
        unsynced: Unsynced,
        *,
        upkeep: Upkeep | None = None,
        cache: BlockCache | None = None,
        replayed: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`wakeup` is what the engine asks for turns; `unsynced` is what its store reports syncs to."""
        self.engine = engine
        self.account = account = Account(settings.max_buffered_bytes)
        self.traffic = traffic = Traffic()
        self.turns = turns = Turns(loop, engine.clock.elapsed_ns)
        self.pressure = Pressure()
        self.parking = Parking(loop, engine.clock, self.pressure)
        self.admission = Admission(engine, self.parking, wakeup.wake)
        self.driver = Driver(loop, wakeup, engine, self.admission.flush, upkeep)
        self.phase = Phase(replayed)
        self.delivery = Delivery(engine, loop, self.driver.run_then, unsynced, account, settings, traffic.pushes)
        self._slots = slots = Slots(settings)
        attempts = Attempts(self.driver.run_then)
        large = LargeWrites(loop, engine, settings.max_command_bytes, self.driver.run_then)
        shared = turns, account, traffic
        self._metrics = Metrics(engine, slots, self.phase, self.pressure, self.parking, *shared, cache, upkeep)
        overview = Overview(engine, slots, self.phase, self.pressure, account, cache)
        self.rows = rows(
            topics=TopicHandlers(engine),
            records=RecordHandlers(engine, self.admission, attempts, large),
            diffs=DiffHandler(engine, loop, attempts, turns, account),
            blocks=BlockHandlers(engine, loop, attempts, account),
            queues=QueueHandlers(engine, self.parking, attempts),
            routers=RouterHandlers(engine),
            work=Work(engine, self.delivery, self.parking, slots, turns),
            watch=Watch(engine, self.delivery, slots, settings),
            websockets=WebSockets(engine, self.delivery, self.admission, slots, settings, *shared, loop, large),
            backups=BackupHandlers(None if upkeep is None else upkeep.backups, self.driver.run_then, account),
            probes=Probes(engine, self.phase, keys.principals),
            metrics=self._metrics,
            overview=overview,
            library=Library(),
            console=Console(f"{settings.host}:{settings.port}", guarded=len(keys) > 0),
            reference=Reference(lambda: self.rows, settings, guarded=len(keys) > 0),
        )
        self.app = App(
            Routes(self.rows, traffic),
            keys,
            Origins(settings, guarded=len(keys) > 0),
            self.phase,
            slots.inflight_per_key,
            self.admission,
            attempts,
            settings,
            traffic.tally("OPTIONS", "preflight"),
        )
        self.governor = self._govern(loop, wakeup, overview)

    def _govern(self, loop: asyncio.AbstractEventLoop, wakeup: Wakeup, overview: Overview) -> Governor:
        on_level = (self.delivery.set_level, wakeup.set_level, self.parking.set_level)
        on_beat = (self.delivery.pulse, overview.beat)
        engine = self.engine
        return Governor(loop, self.pressure, engine.store, engine.unsealed_fill, on_level, on_beat)

    def revoke(self, principals: frozenset[Principal]) -> None:
        """These keys are not valid any more: their streams end, and nothing is kept for them (AUTH-29)."""
        self._metrics.forget()
        for principal in principals:
            self._slots.forget(principal)
        self.delivery.revoke(principals)
