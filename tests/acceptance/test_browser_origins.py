"""Pages of other origins in a real browser: what they can do, and what they cannot (the AUTH rules)."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api, until
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

CALL = """
async ([url, method, body, headers]) => {
  const sent = body === null ? {} : {'Content-Type': 'application/json'};
  try {
    const answer = await fetch(url, {method, body, headers: {...sent, ...headers}});
    return [answer.status, await answer.text(), answer.headers.get('Retry-After')];
  } catch (error) {
    return ['blocked', String(error), null];
  }
}
"""

STREAM = """
async ([url, kind]) => new Promise(resolve => {
  const source = new EventSource(url);
  source.addEventListener(kind, event => { source.close(); resolve(event.data); });
  source.addEventListener('caught-up', () => {});
  source.onerror = () => { source.close(); resolve('blocked'); };
})
"""

SOCKET = """
async ([url]) => new Promise(resolve => {
  const socket = new WebSocket(url);
  socket.onopen = () => socket.send('{"op": "ping"}');
  socket.onmessage = event => { socket.close(); resolve(event.data); };
  socket.onerror = () => resolve('blocked');
})
"""

HARM = """
async ([url]) => {
  const image = new Promise(resolve => {
    const made = document.createElement('img');
    made.onload = made.onerror = resolve;
    made.src = url + '/v0/topics/jobs/work?node=evil&max=10';
  });
  await image;
  const send = (path, options) => fetch(url + path, {mode: 'no-cors', ...options}).catch(() => null);
  await send('/v0/topics/jobs/work?node=evil&max=10', {headers: {Accept: 'text/event-stream'}});
  await send('/v0/topics/jobs/redrive', {method: 'POST'});
  await send('/v0/topics/jobs', {method: 'POST', body: '{"records": [{"data": 1}]}'});
  const form = document.createElement('form');
  const frame = document.createElement('iframe');
  frame.name = 'target';
  form.action = url + '/v0/topics/jobs/redrive';
  form.method = 'post';
  form.target = 'target';
  document.body.append(frame, form);
  const loaded = new Promise(resolve => { frame.onload = resolve; });
  form.submit();
  await loaded;
  frame.remove();
  form.remove();
}
"""


class Blank(BaseHTTPRequestHandler):
    """A web server with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><body></body>")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for all tests, for which the names under .example are on this machine."""
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of a web server that is not the product."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Any]]:
    """A page at an address."""
    contexts = []

    def opened(url: str) -> Any:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()


StartServer = Callable[..., ServerProcess]
OpenPage = Callable[[str], Any]


def state_of(api: Api) -> dict[str, Any]:
    """The state of the queue, without what changes as time passes."""
    passing = ("performance", "effective_priority", "erased_before_ts")
    return {key: value for key, value in api.state("jobs").items() if key not in passing}


def call(
    page: Any, url: str, method: str = "GET", body: str | None = None, headers: dict[str, str] | None = None
) -> Any:
    return page.evaluate(CALL, [url, method, body, headers or {}])


@pytest.mark.parametrize("keys", ["", "s3cret"])
def test_page_of_a_listed_origin_reads_writes_and_streams(
    start_server: StartServer, open_page: OpenPage, site: int, keys: str
) -> None:
    """AUTH-24, AUTH-20: fetch with preflight, errors that can be read, EventSource, WebSocket."""
    origin = f"http://app.example:{site}"
    server = start_server(cors_origins=origin, api_keys=keys)
    page = open_page(origin)
    key = {"Authorization": f"Bearer {keys}"} if keys else {}
    token = f"?token={keys}" if keys else ""

    status, _, _ = call(page, f"{server.url}/v0/topics/t", "PUT", "{}", key)
    assert status == 201
    status, text, _ = call(page, f"{server.url}/v0/topics/t", "POST", '{"records": [{"data": "hello"}]}', key)
    assert (status, '"seqs":[1]' in text) == (200, True)
    status, text, _ = call(page, f"{server.url}/v0/topics/t/diff", "POST", "{}", key)
    assert (status, '"hello"' in text) == (200, True)
    status, text, _ = call(page, f"{server.url}/v0/topics/missing", headers=key)
    assert (status, "topic_not_found" in text) == (404, True)
    status, text, _ = call(page, f"{server.url}/v0/watch", "POST", '{"topics": {"t": {}}}', key)
    stream_url = page.evaluate("text => JSON.parse(text).stream_url", text)
    assert '"hello"' in page.evaluate(STREAM, [f"{server.url}{stream_url}{token}", "record"])
    if not keys:
        assert page.evaluate(SOCKET, [f"ws://{server.host}:{server.port}/v0/ws"]) == '{"op":"pong"}'


def test_page_of_a_listed_origin_streams_with_a_token(
    start_server: StartServer, open_page: OpenPage, site: int
) -> None:
    """AUTH-19, AUTH-24: jobs by EventSource, with the key of a worker in the address."""
    origin = f"http://app.example:{site}"
    server = start_server(cors_origins=origin, api_keys="admin,worker:rw:jobs")
    with closing(Api(server.host, server.port, "admin")) as api:
        api.put("jobs", type="queue")
        api.fill("jobs", 1)
        page = open_page(origin)
        url = f"{server.url}/v0/topics/jobs/work?node=page"
        assert page.evaluate(STREAM, [url, "job"]) == "blocked"
        assert '"data":1' in page.evaluate(STREAM, [f"{url}&token=worker", "job"])


def test_the_page_in_the_documentation_works(start_server: StartServer, open_page: OpenPage, site: int) -> None:
    """AUTH-24, AUTH-19: the code blocks of docs/auth.md as they stand, but for the address."""
    origin = f"http://app.example:{site}"
    server = start_server(cors_origins=origin, api_keys="s3cret")
    document = (Path(__file__).parents[2] / "docs" / "auth.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```js\n(.*?)```", document, re.DOTALL)
    assert len(blocks) == 2
    page = open_page(origin)
    printed: list[str] = []
    page.on("console", lambda message: printed.append(message.text))
    page.evaluate("async () => {" + "".join(blocks).replace("http://127.0.0.1:4000", server.url) + "}")
    until(lambda: page.wait_for_timeout(10) or printed, "the page prints the record")
    assert printed[0].startswith("1 ")


@pytest.mark.parametrize("name", ["evil.example", "localhost", "127.0.0.1"])
def test_page_of_another_origin_can_do_nothing(
    start_server: StartServer, open_page: OpenPage, site: int, name: str
) -> None:
    """AUTH-22, AUTH-23, AUTH-20: neither read nor change, from another site or another port of this machine."""
    server = start_server(cors_origins="https://app.example")
    with closing(Api(server.host, server.port)) as api:
        api.put("jobs", type="queue", max_deliveries=1, dead_letter="dead", lease_ms=100)
        api.fill("jobs", 10)
        page = open_page(f"http://{name}:{site}")
        before = state_of(api)

        assert call(page, f"{server.url}/v0/topics")[0] == "blocked"
        assert call(page, f"{server.url}/v0/topics/jobs", "POST", '{"records": [{"data": 1}]}')[0] == "blocked"
        assert call(page, f"{server.url}/v0/topics/jobs", "DELETE")[0] == "blocked"
        assert page.evaluate(STREAM, [f"{server.url}/v0/topics/jobs/work?node=evil", "job"]) == "blocked"
        assert page.evaluate(SOCKET, [f"ws://{server.host}:{server.port}/v0/ws"]) == "blocked"
        for _ in range(3):
            page.evaluate(HARM, [server.url])

        assert state_of(api) == before
        assert not api.exists("dead")


def test_rebound_page_reads_nothing(start_server: StartServer, open_page: OpenPage) -> None:
    """AUTH-21: a name of the attacker that has come to mean this machine is of the same origin as the server."""
    server = start_server()
    with closing(Api(server.host, server.port)) as api:
        api.fill("secret-plans", 1)
        page = open_page(f"http://rebound.example:{server.port}/v0/topics")
        status, text, _ = call(page, f"http://rebound.example:{server.port}/v0/topics")
        assert status == 421
        assert "secret-plans" not in text
        until(lambda: "secret-plans" not in page.content(), "the page shows no topic")
