"""Source: a server that a backup is taken of, as the calls that this takes. Every failure is one line for people."""

from __future__ import annotations

import time
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from topics.client.client import Client
from topics.client.endpoint import ClientOptions
from topics.client.errors import Unreachable
from topics.commands.failures import CommandError
from topics.commands.link import Target
from topics.errors import BackupNotFound, BackupRunning, TopicsError

PIECE_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 600.0
"""The checkpoint of a large server may take minutes."""
PATIENCE_S: Final = 60.0
"""How long a server may be away, while it restarts."""
CUT_OFF_S: Final = 45.0
"""How long to wait for the end of another backup: one that was cut off ends 30 seconds after its last request."""
PAUSE_S: Final = 1.0


class Interrupted(CommandError):
    """The server has given up the backup, or was restarted: it has to begin again."""


class Source:
    """One server, and the backup that is under way there."""

    def __init__(self, server: Target) -> None:
        options: ClientOptions = {"token": server.token, "timeout_s": TIMEOUT_S, "deadline_s": TIMEOUT_S}
        if server.ca is not None:
            options["ca"] = server.ca
        try:
            self._client = Client(server.url, **options)
        except TopicsError as error:
            raise CommandError(error.message) from None
        self.id = ""
        """The backup that is under way at the server, or nothing."""
        self.received_bytes = 0

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def begin(self, patience_s: float) -> tuple[str, int]:
        """Begin a backup; the file of its snapshot and how long that is.

        `patience_s` is how long to wait for a server that cannot be reached.
        """
        until = time.monotonic() + CUT_OFF_S
        while True:
            try:
                begun = msgspec.json.decode(self._request("POST", "/v0/backup", patience_s=patience_s))
                self.id = begun["backup"]
                return begun["snapshot"]["file"], begun["snapshot"]["bytes"]
            except BackupRunning as error:
                if time.monotonic() >= until:
                    raise CommandError(f"{error.message} ({error.status} {error.code})") from None
                self.pause(PAUSE_S)

    def describe(self, stems: list[str]) -> list[dict[str, Any]]:
        """What the server says about these segments."""
        body = msgspec.json.encode({"segments": stems})
        found: list[dict[str, Any]] = self._call(f"/v0/backup/{self.id}/segments", body)["segments"]
        return found

    def piece(self, file: str, offset: int, size: int) -> bytes:
        """Some bytes of a file of the backup."""
        query = urlencode({"file": file, "offset": offset, "bytes": min(size, PIECE_BYTES)})
        data = self._request("GET", f"/v0/backup/{self.id}?{query}")
        if not data:
            raise CommandError(f"the server's file {file} ends at {offset}, before its end")
        self.received_bytes += len(data)
        return data

    def moment(self) -> dict[str, Any]:
        """Let the log up to now belong to the backup."""
        taken: dict[str, Any] = self._call(f"/v0/backup/{self.id}/moment")
        return taken

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""
        time.sleep(seconds)

    def end(self) -> None:
        """Let the server forget the backup; one that cannot be reached does so when the lease has run out."""
        id, self.id = self.id, ""
        self.end_other(id)

    def end_other(self, id: str) -> None:
        """As `end`, for a backup that was cut off before."""
        if id:
            try:
                self._client.request("DELETE", f"/v0/backup/{id}", deadline_s=5.0, retries=False)
            except TopicsError:
                return

    def _call(self, path: str, body: bytes | None = None) -> Any:
        try:
            return msgspec.json.decode(self._request("POST", path, body))
        except BackupRunning as error:
            raise CommandError(error.message) from None

    def _request(
        self, method: Literal["GET", "POST"], path: str, body: bytes | None = None, *, patience_s: float = PATIENCE_S
    ) -> bytes:
        try:
            return self._client.request(
                method, path, body, deadline_s=patience_s or TIMEOUT_S, retries=bool(patience_s)
            )
        except BackupRunning:
            raise
        except BackupNotFound as error:
            raise Interrupted(error.message) from None
        except TopicsError as error:
            if isinstance(error, Unreachable) and patience_s:
                raise Interrupted(error.message) from None
            status = f" ({error.status} {error.code})" if error.status else ""
            raise CommandError(f"{error.message}{status}") from None
