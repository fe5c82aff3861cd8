"""The service manager is told when the server serves, and its journal gets lines with their level (LOG-7, DEPLOY-6)."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from topics.server import service_manager
from topics.server.logs import JournalLines


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_the_service_manager_is_told(kind: str, tmp_path: Path) -> None:
    """DEPLOY-6."""
    address = str(tmp_path / "notify") if kind == "file" else f"@topics-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0") if kind == "abstract" else address)
        listening.settimeout(10)
        service_manager.notify("READY=1", {"NOTIFY_SOCKET": address})
        assert listening.recv(100) == b"READY=1"


def test_the_service_manager_that_is_gone_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DEPLOY-6."""
    service_manager.notify("READY=1", {})
    assert not caplog.messages
    service_manager.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert "cannot be told that READY=1" in caplog.messages[0]


def test_the_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    """LOG-7: a stream that was redirected since is not the journal."""
    with (tmp_path / "a").open("w") as journal, (tmp_path / "b").open("w") as other:
        found = os.fstat(journal.fileno())
        environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert service_manager.is_journal(journal, environ)
        assert not service_manager.is_journal(other, environ)
        assert not service_manager.is_journal(journal, {})


@pytest.mark.parametrize(("level", "priority"), [("ERROR", 3), ("WARNING", 4), ("INFO", 6), ("DEBUG", 7)])
def test_lines_for_the_journal_begin_with_their_level(level: str, priority: int) -> None:
    """LOG-7: each of them, also those of a defect, and none has a time."""
    try:
        raise ValueError("hidden")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("topics.x", logging.getLevelName(level), "x.py", 1, "it failed", (), info)
    lines = JournalLines().format(record).split("\n")
    assert lines[0] == f"<{priority}>{level} topics.x it failed"
    assert len(lines) > 2
    assert all(line.startswith(f"<{priority}>") for line in lines)
