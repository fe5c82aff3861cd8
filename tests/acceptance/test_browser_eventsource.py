"""A browser's own EventSource and WebSocket against a real server (WATCH-35)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.harness.api import Api, until
from tests.harness.events import Events
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

FOLLOW = """
([url]) => {
  window.seen = [];
  window.source = new EventSource(url);
  const note = kind => event => window.seen.push([kind, event.data ?? null, event.lastEventId ?? null]);
  for (const kind of ['record', 'tombstone', 'caught-up', 'topic-deleted']) source.addEventListener(kind, note(kind));
  source.onopen = () => window.seen.push(['open', null, null]);
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for all tests."""
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[ServerProcess], Any]]:
    """A page of the server itself, so that its streams are of the same origin."""
    contexts = []

    def opened(server: ServerProcess) -> Any:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.goto(f"{server.url}/v0/health")
        return page

    yield opened
    for context in contexts:
        context.close()


def seen(page: Any, kind: str) -> list[tuple[Any, str]]:
    return [(data, id) for each, data, id in page.evaluate("window.seen") if each == kind]


def seqs(page: Any) -> list[int]:
    return page.evaluate(
        "window.seen.filter(([kind]) => kind === 'record')"
        ".flatMap(([, data]) => JSON.parse(data).records.map(record => record.$seq))"
    )


def test_eventsource_follows_reconnects_and_misses_nothing(
    start_server: Callable[..., ServerProcess], open_page: Callable[[ServerProcess], Any]
) -> None:
    """WATCH-35: a browser works unchanged; it reconnects by itself and resumes with its Last-Event-ID."""
    server = start_server()
    with closing(Api(server.host, server.port)) as api:
        api.put("t", cap_records=4)
        api.fill("t", 6)
        page = open_page(server)
        session = page.evaluate(
            "async () => (await fetch('/v0/watch', {method: 'POST', headers: {'Content-Type': 'application/json'},"
            " body: JSON.stringify({topics: {t: {from_seq: 1}}})})).json()"
        )
        page.evaluate(FOLLOW, [session["stream_url"]])
        until(lambda: seen(page, "caught-up"), "the browser has caught up")
        assert '"gap_from":2,"gap_to":2' in seen(page, "tombstone")[0][0]
        assert seqs(page) == [3, 4, 5, 6]
        api.write("t", {"data": "line\nbreak"})
        until(lambda: seqs(page)[-1] == 7, "a live record arrives")
        # Another stream takes the session over; the browser comes back by itself and takes it again.
        with Events(api, session["stream_url"], last_event_id=seen(page, "record")[-1][1]) as other:
            other.until("caught-up")
            api.fill("t", 2)
            other.records(2)
            until(lambda: len(seen(page, "open")) == 2, "the browser has reconnected")
        until(lambda: seqs(page)[-1] == 9, "the browser has everything")
        assert seqs(page) == list(range(3, 10))
        api.remove("t")
        until(lambda: seen(page, "topic-deleted"), "the browser hears of the delete")


def test_eventsource_authenticates_with_a_token(
    start_server: Callable[..., ServerProcess], open_page: Callable[[ServerProcess], Any]
) -> None:
    """AUTH-19: `?token=` is what a browser has instead of a header."""
    server = start_server(api_keys="s3cret")
    with closing(Api(server.host, server.port, "s3cret")) as api:
        api.fill("t", 2)
        url = api.call("POST", "/v0/watch", {"topics": {"t": {}}}).ok()["stream_url"]
        page = open_page(server)
        page.evaluate(FOLLOW, [f"{url}?token=s3cret"])
        until(lambda: seen(page, "caught-up"), "the browser has caught up")
        assert seqs(page) == [1, 2]


def test_browser_websocket_publishes_and_hears(
    start_server: Callable[..., ServerProcess], open_page: Callable[[ServerProcess], Any]
) -> None:
    """WATCH-35: a browser's WebSocket, one connection both ways."""
    server = start_server()
    with closing(Api(server.host, server.port)) as api:
        api.put("room", durability="ephemeral")
        page = open_page(server)
        page.evaluate(
            """() => {
              window.frames_ = [];
              const socket = new WebSocket(`ws://${location.host}/v0/ws`);
              socket.onmessage = event => window.frames_.push(JSON.parse(event.data));
              socket.onopen = () => {
                socket.send(JSON.stringify({op: 'subscribe', request_id: 's', topic: 'room'}));
                socket.send(JSON.stringify({op: 'publish', request_id: 'p', topic: 'room', records: [{data: 'hi'}]}));
              };
            }"""
        )
        until(lambda: len(page.evaluate("window.frames_")) >= 4, "all frames have come")
        ops = sorted(frame["op"] for frame in page.evaluate("window.frames_"))
        assert ops == ["ack", "caught_up", "record", "subscribed"]
