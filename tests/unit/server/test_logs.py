"""Log lines: text and JSON, one per event, and nothing in them that a client sent (the LOG rules)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.harness.server import ManualServer
from topics.errors import Internal
from topics.server import logs
from topics.server.http.access import access
from topics.server.logs import JsonLines, TextLines
from topics.settings import Settings

SECRET = "s3cret-in-a-message"


def defect() -> BaseException:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise KeyError(SECRET) from error
    except KeyError as error:
        return error


def record(message: str = "it failed", error: BaseException | None = None, **fields: Any) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("topics.test", logging.ERROR, "x.py", 1, message, (), cast("Any", exc_info))
    made.fields = fields
    return made


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@pytest.fixture
def access_lines() -> Iterator[list[logging.LogRecord]]:
    """What is logged; `access.setLevel` says how much of that is about requests."""
    kept, level = Kept(), access.level
    logging.getLogger("topics").addHandler(kept)
    yield kept.lines
    logging.getLogger("topics").removeHandler(kept)
    access.setLevel(level)


def test_a_defect_is_logged_without_its_message() -> None:
    """LOG-4: it may quote what was being handled; where it happened is there, for its causes too."""
    text = TextLines().format(record(error=defect()))
    line = json.loads(JsonLines().format(record(error=defect())))
    assert SECRET not in text + json.dumps(line)
    assert "KeyError" in text
    assert "caused by ValueError" in text
    assert [place for place in line["traceback"] if "test_logs.py" in place and "in defect" in place]


def test_what_the_system_says_of_a_file_is_logged() -> None:
    """LOG-4: an operator has to know that the disk is full."""
    assert "No space left on device" in TextLines().format(record(error=OSError(28, "No space left on device")))


def test_a_line_stays_one_line() -> None:
    """LOG-1: whatever it quotes."""
    text = TextLines().format(record("a\nforged line\x1b[31m", name="b\r\nc"))
    assert text.splitlines() == [text]
    assert "\x1b" not in text
    line = JsonLines().format(record("a\nforged line", request_id="r-1"))
    assert line.splitlines() == [line]
    assert json.loads(line)["message"] == "a\nforged line"
    assert {"ts", "level", "logger", "message", "request_id"} == json.loads(line).keys()


def test_what_a_callback_was_given_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """LOG-4: the event loop itself would quote it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(logs.on_loop_error)
    loop.call_soon(lambda data: data / 0, SECRET)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    (line,) = caplog.records
    assert line.getMessage() == "a callback of the loop failed"
    assert SECRET not in TextLines().format(line)


@pytest.fixture
def loggers() -> Iterator[logging.Logger]:
    """The root logger; it and those that `set_up` changes are as before after the test."""
    root = logging.getLogger()
    handlers = [*root.handlers]
    levels = [(logger, logger.level) for logger in (root, logging.getLogger("topics"), access)]
    yield root
    root.handlers[:] = handlers
    for logger, level in levels:
        logger.setLevel(level)


def test_libraries_are_heard_from_warnings_on(loggers: logging.Logger) -> None:
    """LOG-4: the one that decodes the headers of HTTP/2 logs them all at the level debug."""
    logs.set_up(Settings(log_level="debug", access_log="errors", log_format="json"))
    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.INFO)
    assert logging.getLogger("topics.server").isEnabledFor(logging.DEBUG)
    assert (access.isEnabledFor(logging.WARNING), access.isEnabledFor(logging.INFO)) == (True, False)
    assert isinstance(loggers.handlers[0].formatter, JsonLines)


def test_access_log_off_errors_or_all(access_lines: list[logging.LogRecord]) -> None:
    """LOG-2: and a line names the route, the topic and how it ended, not the path or the query."""
    manual = ManualServer()

    def ask() -> list[tuple[str, str, int]]:
        access_lines.clear()
        manual.post()
        manual.send("POST", "/v0/topics/missing/diff?token=hidden", {})
        manual.send("GET", "/no/such/path?token=hidden")
        fields = [cast("Any", line).fields for line in access_lines if line.name == "topics.access"]
        assert "hidden" not in str(fields)
        assert "/no/such" not in str(fields)
        return [(each["route"], each.get("name", ""), each["status"]) for each in fields]

    failed = [("/v0/topics/:topic/diff", "missing", 404), ("none", "", 404)]
    assert ask() == []
    access.setLevel(logging.WARNING)
    assert ask() == failed
    access.setLevel(logging.INFO)
    assert ask() == [("/v0/topics/:topic", "t", 200), *failed]


def test_a_watch_session_is_not_named(access_lines: list[logging.LogRecord]) -> None:
    """LOG-4: its name is a secret, as a key is."""
    access.setLevel(logging.INFO)
    manual = ManualServer()
    manual.send("GET", "/v0/watch/wid_5ecret")
    (line,) = access_lines
    fields = cast("Any", line).fields
    assert (fields["route"], fields["status"]) == ("/v0/watch/:wid", 404)
    assert "5ecret" not in str(fields)


def test_a_request_has_one_id_in_its_answer_and_in_the_log(access_lines: list[logging.LogRecord]) -> None:
    """LOG-3: the client's own where it is sane, or one that no other request has."""
    access.setLevel(logging.WARNING)
    manual = ManualServer()
    ids = []
    for headers in (("X-Request-Id: my-id.7",), (), (), ("X-Request-Id: a b\tc",)):
        (reply,) = manual.send("GET", "/v0/topics/none", None, *headers).replies()
        reply.refused(404, "topic_not_found")
        ids.append(reply.json["error"]["request_id"])
        assert reply.headers["x-request-id"] == ids[-1]
    assert ids[0] == "my-id.7"
    assert len(set(ids)) == 4
    assert [cast("Any", line).fields["request_id"] for line in access_lines] == ids


def test_a_defect_is_logged_under_the_id_that_the_client_gets(
    access_lines: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-3: whether a handler raised it or a later turn."""
    manual = ManualServer()
    monkeypatch.setattr(manual.engine, "state", lambda name, **_: {}[SECRET])
    manual.post()
    (reply,) = manual.send("GET", "/v0/topics/t").replies()
    reply.refused(500, "internal")
    (line,) = [each for each in access_lines if each.levelno == logging.ERROR]
    assert cast("Any", line).fields["request_id"] == reply.json["error"]["request_id"]
    assert SECRET not in TextLines().format(line)
    access_lines.clear()
    monkeypatch.setattr(manual.engine, "write", lambda *_: {}[SECRET])
    (reply,) = manual.post(config={"durability": "disk"}).replies()
    reply.refused(500, "internal")
    request_id = reply.json["error"]["request_id"]
    assert request_id in [getattr(each, "fields", {}).get("request_id") for each in access_lines]
    assert Internal.request_id is None


def test_trace_context_is_logged(access_lines: list[logging.LogRecord]) -> None:
    """LOG-6: if it is one."""
    access.setLevel(logging.WARNING)
    manual = ManualServer()
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for header in (parent, parent.upper(), "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "secret"):
        manual.send("GET", "/v0/topics/none", None, f"traceparent: {header}")
    found = [cast("Any", line).fields.get("traceparent") for line in access_lines]
    assert found == [parent, None, None, None]
