"""The console in a browser: a server with a little of everything, and what a person does on its pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from topics.testing import ServerProcess

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCRIPT = "<img src=x onerror='window.ran = true'><script>window.ran = true</script>"
WAIT_MS = 60_000
REASON = "the mail server does not answer"

PLACES = {
    "#/": ".spark",
    "#/topics/orders": "ol.records li",
    "#/topics/orders/browse": "ol.records li",
    "#/topics/orders/publish": "textarea",
    "#/topics/orders/config": "form select",
    "#/topics/orders/delete": "form input",
    "#/topics/mails": ".letter",
    "#/topics/mails/job/1": ".timeline li",
    "#/topics/mails/config": "form select",
    "#/topics/nowhere": ".facts a",
    "#/routers": ".graph rect",
    "#/consumers": "tbody tr",
    "#/keys": "dl",
    "#/start": "pre",
}
"""Every page, and what is on it once it is ready."""


class Visit:
    """Opens consoles in one browser, and remembers what the browser complains about."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.complaints: list[str] = []

    def __call__(self, server: ServerProcess, place: str = "#/", **options: Any) -> Any:
        """A new page at a place of the console."""
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if "Policy" in message.text else None)
        page.goto(f"{server.url}/{place}")
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()


def go(page: Any, place: str) -> None:
    """Go to another page of the console, as a link does, and wait until it is there."""
    if page.evaluate("location.hash") != place:
        page.evaluate("hash => { document.querySelector('main > *').dataset.old = 1; location.hash = hash; }", place)
        page.locator("main > [data-old]").wait_for(state="detached")
    page.locator(PLACES[place]).first.wait_for()


def call(server: ServerProcess, method: str, path: str, body: object = None, **headers: str) -> Any:
    """One request that succeeds; its answer."""
    sent: dict[str, Any] = {} if body is None else {"json": body}
    reply = server.request(method, path, headers=headers, **sent)
    assert reply.status < 300, reply.json
    return reply.json


def write(server: ServerProcess, topic: str, *records: dict[str, Any]) -> None:
    """Append records."""
    call(server, "POST", f"/v0/topics/{topic}", {"records": list(records)})


def fill(server: ServerProcess) -> None:
    """A little of everything."""
    call(server, "PUT", "/v0/routers/orders%3Eaudit", {"source": "orders", "dest": "audit"})
    write(server, "orders", *({"data": {"n": n}, "tag": f"customer:{n % 5}"} for n in range(100)))
    write(server, "orders", {"data": {"note": SCRIPT}, "tag": "customer:7", "node": "web-1", "meta": {"trace": "abc"}})
    call(server, "PUT", "/v0/topics/recent", {"cap_records": 3})
    for n in range(1, 6):
        write(server, "recent", {"data": n})
    cursors = {"consumer": "billing", "cursors": {"orders": {"seq": 90, "epoch": 1}}, "committed_ts": 0}
    write(server, "topics.consumers", {"data": cursors, "tag": "billing"})
    report(server)
    write(server, "topics.pipelines", {"data": {"name": "shop", "topic": "shop.*", "state": "running"}, "tag": "shop"})
    fail_jobs(server, "mails")


def report(server: ServerProcess) -> None:
    """What a flow says that fails; after half a minute it is old."""
    said = {"name": "revenue", "kind": "archive", "topic": "orders", "state": "waiting", "seq": 80, "lag": 21}
    said |= {"lag_s": 75.0, "rate": 5.0, "restarts": 4, "error": "no space left"}
    write(server, "topics.pipelines", {"data": said, "tag": "revenue"})


def fail_jobs(server: ServerProcess, queue: str) -> None:
    """A queue with a dead letter that was tried twice, a job that a worker holds, and one that waits."""
    config = {"type": "queue", "max_deliveries": 2, "dead_letter": f"{queue}.dead", "lease_ms": 600_000}
    call(server, "PUT", f"/v0/topics/{queue}", config)
    write(server, queue, *({"data": {"mail": text}} for text in ("stuck", "held", "later", "waits")))
    for node in ("worker-1", "worker-2"):
        claim = call(server, "POST", f"/v0/topics/{queue}/claim", {"node": node})
        assert [job["$seq"] for job in claim["claimed"]] == [1]
        call(server, "POST", f"/v0/topics/{queue}/nack", {"node": node, "seqs": [1], "reason": REASON})
    call(server, "POST", f"/v0/topics/{queue}/claim", {"node": "worker-7", "max": 2})
    nack = {"node": "worker-7", "seqs": [3], "reason": "busy", "delay_ms": 3_600_000}
    call(server, "POST", f"/v0/topics/{queue}/nack", nack)


Opened = Callable[..., Any]
