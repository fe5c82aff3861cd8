"""Makes the pictures of docs/console.md: a server with a shop on it, and a browser that looks at its console.

    .venv/bin/python -m tools.console_pictures [DIRECTORY]

The shop is alive while the pictures are taken: orders and clicks arrive, routers copy them, workers fail, a capped
topic evicts. Nothing in a picture is drawn by hand. Needs chromium.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from topics.testing import ServerProcess

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDE = {"width": 1280, "height": 860}
NARROW = {"width": 390, "height": 844}
ROUTERS = (
    ("orders", "orders.audit"),
    ("orders", "orders.search"),
    ("orders", "warehouse.picks", "customer:1*"),
    ("payments", "ledger"),
    ("ledger", "ledger.archive"),
    ("clicks", "clicks.sessions"),
)
REASONS = ("the mail server does not answer", "rate limit of the provider: 429", "address was rejected: 550")
CITIES = ("Lisbon", "Oslo", "Graz", "Porto", "Turin", "Ghent", "Lyon", "Bern")


class Shop:
    """A server, and what happens in it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._dice = random.Random(7)
        self._stopped = threading.Event()
        self._order = 1000

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request; the answer."""
        sent = {} if body is None else {"json": body}
        reply = self._server.request(method, path, **sent)
        assert reply.status < 300, reply.json
        return reply.json

    def write(self, topic: str, *records: dict[str, Any]) -> None:
        """Append records."""
        self.call("POST", f"/v0/topics/{topic}", {"records": list(records)})

    def open(self) -> None:
        """Topics, queues and routers, and a past."""
        self.call("PUT", "/v0/topics/sensors.latest", {"cap_records": 40})
        self.call("PUT", "/v0/topics/payments", {"durability": "fsync"})
        queue = {"type": "queue", "lease_ms": 1_200_000, "max_deliveries": 3, "dead_letter": "mails.dead"}
        self.call("PUT", "/v0/topics/mails", queue)
        self.call("PUT", "/v0/topics/thumbnails", {"type": "queue", "lease_ms": 300_000})
        for source, dest, *tags in ROUTERS:
            rule = {"source": source, "dest": dest, **({"filter": ["tag", "Glob", tags[0]]} if tags else {})}
            self.call("PUT", f"/v0/routers/{source}-%3E{dest}", rule)
        for _ in range(40):
            self.busy(8)
        self.mails()
        self.commit()

    def commit(self) -> None:
        """Consumers and a pipeline say how far they are."""
        heads = {topic: self.call("GET", f"/v0/topics/{topic}")["head_seq"] for topic in ("orders", "payments")}
        for consumer, topic, behind in (
            ("billing", "orders", 0),
            ("ledger", "payments", 2),
            ("search", "orders", 1137),
        ):
            seq = max(0, heads[topic] - behind)
            data = {"consumer": consumer, "cursors": {topic: {"seq": seq, "epoch": 1}}, "committed_ts": 0}
            self.write("topics.consumers", {"tag": consumer, "data": data})
        report = {"name": "orders-lake", "kind": "archive", "topic": "orders", "state": "running", "lag": 0, "lag_s": 0}
        self.write("topics.pipelines", {"tag": "orders-lake", "data": {**report, "seq": heads["orders"], "rate": 58.0}})
        report = {"name": "daily-revenue", "kind": "transform", "topic": "payments", "state": "waiting"}
        report |= {
            "seq": max(0, heads["payments"] - 412),
            "lag": min(412, heads["payments"]),
            "lag_s": 75.0,
            "rate": 0.0,
            "restarts": 3,
            "error": "the key may not write to revenue",
        }
        self.write("topics.pipelines", {"tag": "daily-revenue", "data": report})

    def busy(self, orders: int) -> None:
        """A moment in the shop."""
        dice = self._dice
        for _ in range(orders):
            self._order += 1
            order = {
                "order": self._order,
                "customer": {"id": dice.randrange(60), "city": dice.choice(CITIES)},
                "items": [
                    {"sku": f"SKU-{dice.randrange(900) + 100}", "quantity": dice.randrange(3) + 1} for _ in range(2)
                ],
                "total": round(dice.uniform(9, 240), 2),
            }
            tag = f"customer:{order['customer']['id']}"
            self.write("orders", {"data": order, "tag": tag, "node": f"web-{dice.randrange(3) + 1}"})
        paid = {"order": self._order, "amount": round(dice.uniform(9, 240), 2), "method": dice.choice(("card", "sepa"))}
        self.write("payments", {"data": paid})
        self.write("clicks", *({"data": {"page": f"/p/{dice.randrange(99)}"}} for _ in range(dice.randrange(60, 140))))
        self.write("sensors.latest", {"data": {"celsius": round(dice.gauss(21, 1), 1)}, "node": "hall-2"})

    def mails(self) -> None:
        """Jobs of which some do not get done."""
        self.write(
            "mails", *({"data": {"to": f"customer-{n}@example.com", "template": "order-shipped"}} for n in range(14))
        )
        for attempt in range(3):
            node = f"mailer-{attempt + 1}"
            for job in self.call("POST", "/v0/topics/mails/claim", {"node": node, "max": 3})["claimed"]:
                reason = REASONS[(job["$seq"] + attempt) % 3]
                nack = {"node": node, "seqs": [job["$seq"]], "reason": reason, "delay_ms": 0}
                self.call("POST", "/v0/topics/mails/nack", nack)
        self.call("POST", "/v0/topics/mails/claim", {"node": "mailer-1", "max": 1})
        self.call("POST", "/v0/topics/mails/claim", {"node": "mailer-4", "max": 1, "lease_ms": 20_000})
        late = self.call("POST", "/v0/topics/mails/claim", {"node": "mailer-2", "max": 2})["claimed"]
        again = {"node": "mailer-2", "seqs": [late[0]["$seq"]], "reason": REASONS[0], "delay_ms": 600_000}
        self.call("POST", "/v0/topics/mails/nack", again)
        self.write("thumbnails", *({"data": {"image": f"/products/{n}.png"}} for n in range(230)))
        self.call("POST", "/v0/topics/thumbnails/claim", {"node": "resizer-1", "max": 3})

    def run(self) -> None:
        """Go on until `stop`."""
        turn = 0
        while not self._stopped.wait(0.1):
            self.busy(self._dice.randrange(2, 7))
            turn += 1
            if turn % 20 == 0:
                self.commit()

    def stop(self) -> None:
        """Close the shop."""
        self._stopped.set()


def look(page: Page, url: str, directory: Path) -> None:
    """Take the pictures of a wide page."""

    def take(name: str, place: str, ready: str) -> None:
        page.goto(f"{url}/#/{place}")
        page.locator(ready).first.wait_for()
        page.wait_for_timeout(4_500)
        page.screenshot(path=directory / f"console-{name}.png")

    page.goto(url)
    # The sparklines show two minutes; some of them are enough for a picture.
    page.wait_for_timeout(60_000)
    take("overview", "", ".spark polyline")
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(300)
    page.screenshot(path=directory / "console-server.png")
    take("gap", "topics/sensors.latest/browse/1", "li.gap")
    take("queue", "topics/mails", ".letter")
    take("job", "topics/mails/job/1", ".timeline li")
    take("routers", "routers", ".graph rect")
    take("consumers", "consumers", "td.late")
    page.goto(f"{url}/#/topics/orders/live")
    page.locator("ol.records li").nth(10).wait_for()
    page.get_by_role("button", name="Pause").click()
    page.locator("ol.records summary").nth(2).click()
    page.wait_for_timeout(500)
    page.screenshot(path=directory / "console-live.png")
    page.goto(f"{url}/#/topics/orders/delete")
    page.get_by_label("Tag", exact=True).fill("customer:42")
    page.get_by_role("button", name="Count them").click()
    page.get_by_role("button", name="records for good").wait_for()
    page.screenshot(path=directory / "console-erase.png")
    page.goto(f"{url}/#/topics/orders/config")
    page.get_by_label("cap_records").fill("100")
    page.get_by_text("evicted at once").wait_for()
    page.screenshot(path=directory / "console-config.png")


def main() -> None:
    """Make all pictures."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    directory.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with ServerProcess() as server, sync_playwright() as playwright:
        shop = Shop(server)
        shop.open()
        running = threading.Thread(target=shop.run)
        running.start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            look(browser.new_page(viewport=WIDE), server.url, directory)
            dark = browser.new_page(viewport=WIDE, color_scheme="dark")
            dark.goto(server.url)
            dark.wait_for_timeout(25_000)
            dark.screenshot(path=directory / "console-dark.png")
            narrow = browser.new_page(viewport=NARROW, device_scale_factor=2)
            narrow.goto(f"{server.url}/#/topics/mails")
            narrow.locator(".letter").first.wait_for()
            narrow.wait_for_timeout(1_000)
            narrow.screenshot(path=directory / "console-narrow.png")
        finally:
            browser.close()
            shop.stop()
            running.join()
    took = time.strftime("%H:%M:%S")
    print(f"{took} pictures in {directory}")


if __name__ == "__main__":
    main()
