"""The console in a real browser, on a server with real data (the CONSOLE rules)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.api import free_port
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

SCRIPT = "<img src=x onerror='window.ran = true'><script>window.ran = true</script>"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with a little of everything."""
    with ServerProcess() as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for all tests."""
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the console; whatever the browser complains about fails the test."""
    contexts = []
    complaints: list[str] = []

    def opened(server: ServerProcess, place: str = "#/", **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
        page.goto(f"{server.url}/{place}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def call(server: ServerProcess, method: str, path: str, body: object = None, **headers: str) -> Any:
    sent = {} if body is None else {"json": body}
    reply = server.request(method, path, headers=headers, **sent)
    assert reply.status < 300, reply.json
    return reply.json


def write(server: ServerProcess, topic: str, *records: dict[str, Any]) -> None:
    call(server, "POST", f"/v0/topics/{topic}", {"records": list(records)})


def fill(server: ServerProcess) -> None:
    write(server, "orders", *({"data": {"n": n}, "tag": f"customer:{n % 5}"} for n in range(100)))
    write(server, "orders", {"data": {"note": SCRIPT}, "tag": "customer:7", "node": "web-1", "meta": {"trace": "abc"}})
    call(server, "PUT", "/v0/topics/recent", {"cap_records": 3})
    for n in range(1, 6):
        write(server, "recent", {"data": n})
    call(server, "PUT", "/v0/routers/orders%3Eaudit", {"source": "orders", "dest": "audit"})


def test_the_overview_shows_every_topic_and_its_rate(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-2."""
    page = visit(server)
    row = page.locator("tr", has=page.get_by_role("link", name="orders", exact=True))
    row.wait_for()
    assert "101" in row.inner_text()
    write(server, "orders", *({"data": n} for n in range(50)))
    sync_api.expect(page.locator(".tile .value").first).not_to_have_text("0/s")
    page.get_by_label("filter topics by name").fill("rec")
    page.get_by_role("link", name="audit").wait_for(state="detached")
    assert page.get_by_role("link", name="recent").count() == 1


def test_a_topic_shows_records_as_they_come_and_runs_none_of_them(
    visit: Callable[..., Any], server: ServerProcess
) -> None:
    """CONSOLE-3: what is in a record is shown as text, whatever it says."""
    write(server, "live", {"data": {"note": SCRIPT}})
    page = visit(server, "#/topics/live")
    page.locator("ol.records summary", has_text="onerror").click()
    page.locator(".json.string", has_text="onerror").wait_for()
    write(server, "live", {"data": "fresh off the press"})
    page.locator("ol.records summary", has_text="fresh off the press").wait_for()
    assert page.evaluate("window.ran") is None


def test_lost_records_are_a_visible_gap(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-4: with their range and the reason."""
    page = visit(server, "#/topics/recent/browse")
    gap = page.locator("li.gap")
    gap.wait_for()
    assert "2 records lost" in gap.inner_text()
    assert "seq 1 to 2" in gap.inner_text()
    assert page.locator("ol.records summary").count() == 3


def test_a_record_is_published_and_found_by_its_tag(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-5."""
    page = visit(server, "#/topics/notes/publish")
    page.get_by_label("Data, any JSON").fill('{"by": "hand"}')
    page.get_by_label("Tag").fill("mine")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Written as seq 1.").wait_for()
    page.get_by_label("Data, any JSON").fill("{")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("The data is not JSON").wait_for()
    page.goto(f"{server.url}/#/topics/notes/browse")
    page.get_by_label("Tag").fill("mine")
    page.get_by_role("button", name="Read").click()
    page.locator("ol.records summary", has_text="hand").wait_for()


def test_a_customer_is_erased_by_tag_after_a_count(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-6: nothing is deleted before the number was seen."""
    write(server, "people", *({"data": n, "tag": "customer:42" if n < 3 else "other"} for n in range(10)))
    page = visit(server, "#/topics/people/delete")
    page.get_by_label("Tag").fill("customer:42")
    page.get_by_role("button", name="Count them").click()
    page.get_by_text("3 records have this tag now").wait_for()
    assert call(server, "GET", "/v0/topics/people")["count"] == 10
    page.get_by_role("button", name="Delete 3 records for good").click()
    page.get_by_text("3 records deleted.").wait_for()
    assert call(server, "GET", "/v0/topics/people")["count"] == 7


def test_a_change_of_config_says_what_it_does_first(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-7."""
    write(server, "capped", *({"data": n} for n in range(10)))
    page = visit(server, "#/topics/capped/config")
    page.get_by_label("cap_records").fill("4")
    page.get_by_text("6 of 10 records are evicted at once, for good.").wait_for()
    assert call(server, "GET", "/v0/topics/capped")["count"] == 10
    page.get_by_role("button", name="Save").click()
    page.get_by_text("This will change").wait_for(state="detached")
    assert call(server, "GET", "/v0/topics/capped")["count"] == 4


def test_a_stuck_job_is_found_and_redriven(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-8: who holds what, the dead letters, and a way back for them."""
    call(server, "PUT", "/v0/topics/jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"})
    write(server, "jobs", {"data": "stuck"}, {"data": "held"})
    call(server, "POST", "/v0/topics/jobs/claim", {"node": "a"})
    call(server, "POST", "/v0/topics/jobs/nack", {"node": "a", "seqs": [1]})
    call(server, "POST", "/v0/topics/jobs/claim", {"node": "worker-7"})
    page = visit(server, "#/queues/jobs")
    page.get_by_role("region", name="Leases").get_by_text("worker-7").wait_for()
    page.locator(".letter", has_text="stuck").get_by_role("button", name="Redrive").click()
    page.get_by_text("1 dead letter turned into jobs again.").wait_for()
    page.locator("ol.records summary", has_text="stuck").wait_for()


def test_routers_are_drawn(visit: Callable[..., Any], server: ServerProcess) -> None:
    """CONSOLE-9."""
    page = visit(server, "#/routers")
    page.locator(".graph rect").first.wait_for()
    assert page.locator(".graph rect").count() == 2
    assert page.locator(".graph path.arrow").count() == 1
    assert page.get_by_role("rowheader", name="orders>audit").count() == 1


def test_a_key_is_asked_for_and_decides_what_is_shown(visit: Callable[..., Any]) -> None:
    """CONSOLE-10: kept in memory only; without the scope there is no button."""
    with ServerProcess(api_keys="boss,reader:read:pub.") as server:
        for topic in ("pub.a", "secret.b"):
            body = {"records": [{"data": 1}]}
            call(server, "POST", f"/v0/topics/{topic}", body, Authorization="Bearer boss")
        page = visit(server)
        page.get_by_role("textbox", name="Key").fill("reader")
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("link", name="pub.a").click()
        page.get_by_role("link", name="Browse").wait_for()
        assert page.get_by_role("link", name="Publish").count() == 0
        assert "secret.b" not in page.content()
        assert "reader" not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        page.reload()
        page.get_by_text("This server asks for a key").wait_for()


def test_a_lost_server_is_shown_and_comes_back(visit: Callable[..., Any]) -> None:
    """CONSOLE-11: the page says so, and goes on by itself."""
    with ServerProcess(port=free_port()) as server:
        write(server, "t", {"data": "before"})
        page = visit(server, "#/topics/t")
        page.locator("ol.records summary", has_text="before").wait_for()
        server.kill()
        page.get_by_text("The server does not answer").wait_for()
        server.start()
        page.locator("#status.up").wait_for()
        write(server, "t", {"data": "after"})
        page.locator("ol.records summary", has_text="after").wait_for()
        assert page.locator("ol.records > li").count() == 2


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 700}}])
def test_dark_and_narrow(visit: Callable[..., Any], server: ServerProcess, options: dict[str, Any]) -> None:
    """CONSOLE-12: nothing is wider than the screen."""
    for place in ("#/", "#/topics/orders", "#/topics/orders/config", "#/routers", "#/start"):
        page = visit(server, place, **options)
        page.locator("h1").wait_for()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        page.close()
