"""The JavaScript library in a real browser, loaded from the server it talks to (JS-7)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

USE = """
async ([token]) => {
  const { Client } = await import("/topics.js");
  const client = new Client(undefined, { token });
  const topic = client.topic("browser");
  await topic.write({ from: "http" });
  const socket = client.socket();
  await socket.publish("browser", [{ data: { from: "socket" } }]);
  const followed = [];
  for await (const record of topic.follow()) {
    followed.push(record.data.from);
    if (followed.length === 2) break;
  }
  const subscribed = [];
  for await (const record of socket.subscribe("browser")) {
    subscribed.push(record.data.from);
    if (subscribed.length === 2) break;
  }
  socket.close();
  return [followed, subscribed];
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for all tests."""
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize("token", [None, "s3cret-Key/+"])
def test_a_page_writes_follows_and_subscribes(browser: Any, token: str | None) -> None:
    """JS-7: with a key also, which a WebSocket of a browser can only send as a subprotocol."""
    settings = {} if token is None else {"api_keys": token}
    with ServerProcess(**settings) as server:
        page = browser.new_page()
        page.goto(f"{server.url}/v0/health")
        followed, subscribed = page.evaluate(USE, [token])
        page.close()
    assert followed == ["http", "socket"]
    assert subscribed == ["http", "socket"]
