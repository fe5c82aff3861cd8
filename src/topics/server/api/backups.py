"""Online backups over HTTP: a client copies the files of a server that goes on serving (the BACKUP rules).

    POST   /v0/backup                     a checkpoint is made, and its files stay until the end of the backup
    POST   /v0/backup/:id/segments        how long the files of some segments are, and by what a copy is known
    GET    /v0/backup/:id?file=&offset=   some bytes of a file
    POST   /v0/backup/:id/moment          the moment of the backup: which files of the log belong to it, and how far
    DELETE /v0/backup/:id                 its end

A backup holds every topic, so a key that is limited to prefixes may not take one. Files are read by one job at a time,
a piece at a time, whatever a client asks for: a backup costs others no more than any reader does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from topics.engine.upkeep.backups import LEASE_MS, SEGMENTS_MAX, Backup, Backups
from topics.errors import BackupUnavailable, BatchTooLarge, Forbidden, Throttled, TopicsError
from topics.server.api.answers import answer
from topics.server.api.attempts import RunThen
from topics.server.api.bodies import Body
from topics.server.api.principal import Principal
from topics.server.api.shapes import BackupBegun, BackupEnded, BackupFile
from topics.server.http.account import Account
from topics.server.http.exchange import Exchange, as_answer
from topics.server.http.reply import render
from topics.storage.job import Task

CONTENT_TYPE: Final = b"application/octet-stream"
PIECE_BYTES: Final = 1 << 20
WAITING_MAX: Final = 16


class Described(msgspec.Struct):
    """The body of a request about segments."""

    segments: list[str] = []


_described: Final = Body(Described, Described())


class BackupHandlers:
    """Answers the routes of a backup."""

    def __init__(self, backups: Backups | None, run_then: RunThen, account: Account) -> None:
        """`backups` is None where there is no data directory."""
        self._of_store = backups
        self._run_then = run_then
        self._account = account
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def begin(self, exchange: Exchange) -> None:
        """`POST /v0/backup`."""
        backups = self._backups(exchange)

        def begun(backup: Backup | TopicsError) -> None:
            exchange.on_disconnect = None
            if isinstance(backup, TopicsError):
                exchange.fail(backup)
                return
            file = BackupFile(backup.snapshot, backup.snapshot_bytes)
            answer(exchange, 201, BackupBegun(backup.id, LEASE_MS, file))

        backups.begin(begun)
        exchange.on_disconnect = backups.cancel

    def segments(self, exchange: Exchange) -> None:
        """`POST /v0/backup/:id/segments`."""
        backup = self._backups(exchange).find(exchange.head.route.name)
        stems = _described(exchange.body).segments
        if len(stems) > SEGMENTS_MAX:
            raise BatchTooLarge(f"{len(stems)} segments; one request may name {SEGMENTS_MAX}", limit=SEGMENTS_MAX)
        self._run(exchange, partial(backup.describe, stems), lambda found: answer(exchange, 200, {"segments": found}))

    def read(self, exchange: Exchange) -> None:
        """`GET /v0/backup/:id`."""
        query = exchange.head.route.query
        length = min(query.number("bytes", PIECE_BYTES, least=1), PIECE_BYTES)
        file, offset = query.text("file"), query.number("offset", 0)
        backup = self._backups(exchange).find(exchange.head.route.name)
        if self._account.full:
            raise self._account.refusal()
        read = partial(backup.read, file, offset, length)
        self._run(exchange, read, lambda data: exchange.respond_raw(render(200, data, CONTENT_TYPE)))

    def moment(self, exchange: Exchange) -> None:
        """`POST /v0/backup/:id/moment`."""
        is_gone = False

        def leave() -> None:
            nonlocal is_gone
            is_gone = True

        def taken(moment: dict[str, Any] | TopicsError) -> None:
            exchange.on_disconnect = None
            if isinstance(moment, TopicsError):
                if not is_gone:
                    exchange.fail(moment)
            elif not is_gone:
                answer(exchange, 200, moment)

        self._backups(exchange).moment(exchange.head.route.name, taken)
        exchange.on_disconnect = leave

    def end(self, exchange: Exchange) -> None:
        """`DELETE /v0/backup/:id`."""
        id = exchange.head.route.name
        self._backups(exchange).end(id)
        answer(exchange, 200, BackupEnded(id, ended=True))

    def _backups(self, exchange: Exchange) -> Backups:
        principal: Principal = exchange.head.route.principal
        if principal.prefixes:
            raise Forbidden("a backup holds every topic, and the key is limited to some: use a key without prefixes")
        if self._of_store is None:
            raise BackupUnavailable("this server has no data directory, so there is nothing to back up")
        return self._of_store

    def _run(self, exchange: Exchange, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have a job do some work in its turn, then answer with what it has found."""
        if len(self._waiting) >= WAITING_MAX:
            raise Throttled("too many requests of backups wait; a backup needs one at a time", retry_after_ms=1000)
        found: list[Any] = []

        def finish(error: BaseException | None) -> None:
            self._running = False
            if isinstance(error, Exception):
                exchange.fail(as_answer(error, "reading", exchange.head))
            else:
                then(found[0])
            self._next()

        job = Task("backup", lambda: found.append(work()), finish)
        self._waiting.append(lambda: self._run_then(job, lambda: None))
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._running:
            self._running = True
            self._waiting.popleft()()
