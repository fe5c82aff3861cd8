"""Logs: lines of text or of JSON on standard error, without anything that a client sent as data (the LOG rules).

Guarantees:
- No line holds a key, a token or a part of a record. So a defect is logged with the places in the code that it went
  through and its type, but without its message, since that may quote what was being handled. Only what the system says
  about a file or a socket (`OSError`) is quoted.
- One event is one line, whatever it quotes, but for the places of a defect, which follow it in text.
- Where systemd takes the lines for its journal, they have no time of their own, and `journalctl -p` knows their level.
- Loggers of libraries are heard from WARNING on, whatever the level is: some of them log every header.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from topics.server import service_manager
from topics.settings import Settings

CAUSES_MAX: Final = 5
FRAMES_MAX: Final = 50
ACCESS_LEVELS: Final = {"off": logging.CRITICAL + 1, "errors": logging.WARNING, "all": logging.INFO}
# The levels of syslog, which the journal uses.
PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))

log = logging.getLogger("topics")


def set_up(settings: Settings) -> None:
    """Have everything logged as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    text = JournalLines if service_manager.is_journal(sys.stderr) else TextLines
    handler.setFormatter(JsonLines() if settings.log_format == "json" else text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    log.setLevel(settings.log_level.upper())
    logging.getLogger("topics.access").setLevel(ACCESS_LEVELS[settings.access_log])


def on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop calls for an error that nobody caught; its own way would quote what a callback was given."""
    message = str(context.get("message", ""))
    about_callback = "handle" in context or message.startswith("Exception in callback")
    log.error("%s", "a callback of the loop failed" if about_callback else message, exc_info=context.get("exception"))


def described(error: BaseException | None) -> list[str]:
    """A defect as lines: what was raised, and where, the last call first, for the error and its causes."""
    lines: list[str] = []
    for _ in range(CAUSES_MAX):
        if error is None:
            break
        message = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        lines.append(f"{'caused by ' if lines else ''}{type(error).__qualname__}{message}")
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
        lines += [f"  at {frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class TextLines(logging.Formatter):
    """Lines for people: time, level, logger, message, and what is known as `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and after it where a defect happened."""
        parts = [*self.before(record), record.levelname, record.name, _one_line(record.getMessage())]
        fields: dict[str, Any] = getattr(record, "fields", {})
        parts += [f"{name}={_one_line(str(value))}" for name, value in fields.items()]
        error = _error_of(record)
        lines = [] if error is None else ["Traceback, without what it quotes:", *described(error)]
        return "\n".join([" ".join(parts), *lines])

    def before(self, record: logging.LogRecord) -> list[str]:
        """What a line begins with."""
        return [self.formatTime(record)]


class JournalLines(TextLines):
    """Lines for the journal, which has the time itself, and takes the level from what each line begins with."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and after it where a defect happened."""
        priority = next(number for level, number in PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))

    def before(self, record: logging.LogRecord) -> list[str]:
        """Nothing."""
        return []


class JsonLines(logging.Formatter):
    """Lines for machines: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        error = _error_of(record)
        if error is not None:
            line["traceback"] = described(error)
        return msgspec.json.encode(line).decode()
