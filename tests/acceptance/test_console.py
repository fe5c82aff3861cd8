"""The console in a real browser, on a server with real data (the CONSOLE rules)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import free_port, until
from tests.harness.console import REASON, SCRIPT, WAIT_MS, Visit, call, fail_jobs, report, write
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.browser
UNKNOWN = ("", "0/s", "\u2013")


def topics(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "topics", *arguments], check=True, capture_output=True, timeout=60)


def expect(locator: Any) -> Any:
    sync_api.expect.set_options(timeout=WAIT_MS)
    return sync_api.expect(locator)


def test_the_overview_shows_topics_with_rates_and_the_state_of_the_server(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-2: and a loss as soon as it is noticed."""
    page = visit(shop)
    row = page.locator("tr", has=page.get_by_role("link", name="orders", exact=True))
    expect(row).to_contain_text("101")
    rate = page.locator(".tile .value").first
    until(lambda: write(shop, "rated", {"data": 1}) or rate.inner_text() not in UNKNOWN, "a rate")
    for text in ("Connections", "Pressure", "calm", "Damage found", "syncs:", "Free on the disk"):
        expect(page.get_by_text(text, exact=text != "syncs:").first).to_be_visible()
    loss = page.get_by_role("region", name="Recent losses").get_by_role("row", name="recent")
    expect(loss).to_contain_text("1 \u2013 2")
    write(shop, "recent", {"data": 6})
    expect(loss).to_contain_text("1 \u2013 3")
    page.get_by_label("filter topics by name").fill("rec")
    page.get_by_role("link", name="audit").wait_for(state="detached")
    assert page.get_by_role("region", name="Topics").get_by_role("link").all_inner_texts() == ["recent"]


def test_a_topic_shows_records_as_they_come_and_runs_none_of_them(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-3: what is in a record is shown as text, whatever it says."""
    write(shop, "live", {"data": {"note": SCRIPT}})
    page = visit(shop, "#/topics/live")
    page.locator("ol.records summary", has_text="onerror").click()
    page.locator(".json .string", has_text="onerror").wait_for()
    write(
        shop, "live", {"data": "fresh", "tag": "a", "node": "n1"}, {"data": "off the press", "tag": "b", "node": "n2"}
    )
    rows = page.locator("ol.records > li")
    expect(rows).to_have_count(3)
    page.get_by_role("textbox", name="show only records of this node").fill("n2")
    expect(rows).to_have_count(1)
    page.get_by_role("textbox", name="show only records of this node").fill("")
    page.get_by_role("textbox", name="show only records with this tag").fill("a")
    expect(rows).to_have_count(1)
    assert "fresh" in rows.inner_text()
    page.get_by_role("button", name="Pause").click()
    write(shop, "live", {"data": "later", "tag": "a"})
    page.get_by_text("Paused: 1 more have come.").wait_for()
    assert rows.count() == 1
    page.get_by_role("button", name="Continue").click()
    expect(rows).to_have_count(2)
    assert page.evaluate("window.ran") is None


def test_lost_records_are_a_visible_gap(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-4: with their range and the reason."""
    call(shop, "PUT", "/v0/topics/gappy", {"cap_records": 3})
    for n in range(1, 6):
        write(shop, "gappy", {"data": n})
    page = visit(shop, "#/topics/gappy/browse")
    gap = page.locator("li.gap")
    gap.wait_for()
    assert "2 records lost" in gap.inner_text()
    assert "seq 1 to 2" in gap.inner_text()
    assert "evicted by the cap" in gap.inner_text()
    assert page.locator("ol.records summary").count() == 3


def test_what_a_restore_took_is_one_gap_in_either_direction(visit: Visit, tmp_path: Path) -> None:
    """CONSOLE-4: and no number of records is invented for the seqs that it leaves out."""
    with ServerProcess() as server:
        write(server, "orders", *({"data": n} for n in range(20)))
        topics("backup", str(tmp_path / "backups"), "--url", server.url)
    topics("restore", str(tmp_path / "backups"), str(tmp_path / "data"))
    with ServerProcess(data_dir=tmp_path / "data") as server:
        write(server, "orders", {"data": "new"})
        page = visit(server, "#/topics/orders/browse")
        shown, gap = page.locator("main [role=status]"), page.locator("li.gap")
        for button in ("Last", "First"):
            page.get_by_role("button", name=button).first.click()
            expect(shown).to_contain_text("21 records, seq 1 to 68,719,476,7")
            expect(gap).to_have_count(1)
            expect(gap).to_contain_text("Records may be lost \u2013 seq 21 to 68,719,476,7")
            expect(gap).to_contain_text("a backup was restored")


def test_times_are_told_by_the_clock_of_the_server(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-8: what is left of a lease, also where the clock of the person that looks is wrong."""
    page = visit(shop, "#/topics/mails")
    page.add_init_script("Date.now = () => 1_000_000")
    page.reload()
    lease = page.get_by_role("region", name="Leases").get_by_role("row", name="job 2")
    expect(lease).to_contain_text(re.compile("in [0-9]+ min"))
    assert page.evaluate("Date.now()") == 1_000_000


def test_records_are_browsed_by_seq_time_tag_node_and_text(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-15: page by page, in both directions."""
    write(shop, "pages", *({"data": {"n": n}, "tag": f"t{n % 3}", "node": f"n{n % 2}"} for n in range(1, 181)))
    page = visit(shop, "#/topics/pages/browse/11")
    shown, read = page.locator("main [role=status]"), page.get_by_role("button", name="Read")
    expect(shown).to_have_text("50 records, seq 11 to 60.")
    page.get_by_role("button", name="Newer").first.click()
    expect(shown).to_have_text("50 records, seq 61 to 110.")
    page.get_by_role("button", name="Older").first.click()
    expect(shown).to_have_text("50 records, seq 11 to 60.")
    page.get_by_role("button", name="Last").first.click()
    expect(shown).to_have_text("50 records, seq 131 to 180.")
    page.get_by_label("Tag").fill("t0")
    page.get_by_label("Node").fill("n1")
    page.get_by_label("Text").fill('"n":9')
    page.get_by_role("button", name="First").first.click()
    expect(shown).to_have_text("3 records, seq 9 to 99.")
    page.get_by_role("button", name="Last").first.click()
    expect(shown).to_have_text("3 records, seq 9 to 99.")
    for label in ("Tag", "Node", "Text"):
        page.get_by_label(label).fill("")
    page.get_by_label("or from time").fill("2020-01-01T00:00:00")
    read.click()
    expect(shown).to_have_text("50 records, seq 1 to 50.")
    page.get_by_label("or from time").fill("2999-01-01T00:00:00")
    read.click()
    expect(shown).to_have_text("No record there.")


def test_a_record_is_published_folded_and_found(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-5."""
    page = visit(shop, "#/topics/notes/publish")
    data, publish = page.get_by_label("Data, any JSON"), page.get_by_role("button", name="Publish")
    data.fill("{")
    publish.click()
    page.get_by_text("The data is not JSON").wait_for()
    data.fill('{"by": {"whom": "hand"}}')
    page.get_by_label("Tag").fill("mine")
    publish.click()
    page.get_by_text("Written as seq 1.").wait_for()
    page.get_by_role("link", name="Show it").click()
    page.locator("ol.records summary", has_text="hand").click()
    value = page.locator(".json .string", has_text="hand")
    value.wait_for()
    page.locator(".json summary", has_text="by:").click()
    value.wait_for(state="hidden")
    page.get_by_role("button", name="As text").click()
    page.locator("pre", has_text='"whom": "hand"').wait_for()


def test_what_is_shown_and_published_is_what_was_written(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-5: numbers that JavaScript cannot hold, and marks that would turn a line around."""
    page = visit(shop, "#/topics/exact/publish")
    page.get_by_label("Data, any JSON").fill('{"id": 12345678901234567890, "text": "a\u202eb"}')
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("link", name="Show it").click()
    row = page.locator("ol.records li")
    expect(row.locator(".line")).to_have_text('{"id":12345678901234567890,"text":"a\\u202eb"}')
    row.locator("summary").first.click()
    expect(row.locator(".json .number")).to_have_text("12345678901234567890")
    answer = shop.request("POST", "/v0/topics/exact/diff", json={"from_seq": 0})
    assert b'"id":12345678901234567890' in answer.body


def test_a_customer_is_erased_by_tag_after_a_count(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-6: nothing is deleted before the number was seen; copies and dead letters are counted too."""
    call(shop, "PUT", "/v0/topics/copies", {"type": "queue", "max_deliveries": 1, "dead_letter": "copies.dead"})
    call(shop, "PUT", "/v0/routers/people%3Ecopies", {"source": "people", "dest": "copies"})
    write(shop, "people", *({"data": n, "tag": "customer:42" if n < 3 else "other"} for n in range(10)))
    call(shop, "POST", "/v0/topics/copies/claim", {"node": "w"})
    call(shop, "POST", "/v0/topics/copies/nack", {"node": "w", "seqs": [1]})
    page = visit(shop, "#/topics/people/delete")
    page.get_by_label("Tag", exact=True).fill("customer:42")
    page.get_by_role("button", name="Count them").click()
    page.get_by_role("button", name="Delete 6 records for good").wait_for()
    assert call(shop, "GET", "/v0/topics/people")["count"] == 10
    page.get_by_label("delete in copies", exact=True).uncheck()
    page.get_by_role("button", name="Delete 4 records for good").click()
    page.get_by_text("4 records deleted.").wait_for()
    counts = [call(shop, "GET", f"/v0/topics/{topic}")["count"] for topic in ("people", "copies", "copies.dead")]
    assert counts == [7, 9, 0]


def test_a_change_of_config_says_what_it_does_first(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-7."""
    write(shop, "capped", *({"data": n} for n in range(10)))
    page = visit(shop, "#/topics/capped/config")
    page.get_by_label("cap_records").fill("4")
    page.get_by_text("6 of 10 records are evicted at once, for good.").wait_for()
    assert call(shop, "GET", "/v0/topics/capped")["count"] == 10
    page.get_by_role("button", name="Save, and lose records for good").click()
    page.get_by_text("Saved.").wait_for()
    assert call(shop, "GET", "/v0/topics/capped")["count"] == 4


def test_a_stuck_job_is_found_and_redriven(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-8: who holds what, why a job came back, and a way back for dead letters."""
    fail_jobs(shop, "jobs")
    page = visit(shop, "#/topics/jobs")
    leases = page.get_by_role("region", name="Leases")
    expect(leases.get_by_role("row", name="job 2")).to_contain_text("worker-7")
    expect(leases.get_by_role("row", name="job 3")).to_contain_text("delayed")
    expect(page.locator(".tiles .value")).to_have_text(["1", "1", "1", "1"])
    expect(page.locator(".letter")).to_contain_text(REASON)
    troubled = page.get_by_role("region", name="Jobs that had trouble")
    expect(troubled.get_by_role("row", name="job 1")).to_contain_text(REASON)
    troubled.get_by_role("link", name="job 1").click()
    steps = page.locator(".timeline li")
    expect(steps).to_have_count(4)
    assert REASON in steps.nth(0).inner_text()
    assert "claimed by worker-2" in steps.nth(1).inner_text()
    assert "became a dead letter" in steps.nth(3).inner_text()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("button", name="Redrive dead letter 1").click()
    page.get_by_text("1 dead letter turned into a job again.").wait_for()
    dead = page.locator(".tile", has_text="Dead")
    expect(dead).to_contain_text("0wait in jobs.dead; 1 so far")
    expect(dead).not_to_have_class(re.compile("bad"))
    page.locator("section", has_text="Peek").locator("summary", has_text="stuck").wait_for()


def test_routers_consumers_and_pipelines_show_their_lag(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-9: routers as a graph."""
    page = visit(shop, "#/routers")
    page.locator(".graph rect").first.wait_for()
    row = page.get_by_role("row", name="orders>audit")
    assert row.get_by_role("cell").last.inner_text() == "0"
    assert page.locator(".graph a", has_text="orders").count() == 1
    expect(row).to_contain_text("everything")
    report(shop)
    page.get_by_role("link", name="Consumers").click()
    expect(page.get_by_role("row", name="billing")).to_contain_text("11")
    pipeline = page.get_by_role("row", name="revenue")
    expect(pipeline).to_contain_text("21")
    expect(pipeline).to_contain_text("no space left")
    cells = pipeline.get_by_role("cell")
    assert [cells.nth(at).inner_text() for at in (0, 1, 3, 4, 6)] == ["orders", "waiting", "21", "1 min 15 s", "4"]
    assert page.get_by_role("row", name="shop").get_by_role("link").count() == 0, "a prefix is no topic"


def test_a_flow_that_has_not_reported_for_long_is_old(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-9: it is gone or cannot reach the server, and only one that has not ended is missed."""
    for name, state in (("silent", "running"), ("over", "stopped")):
        write(shop, "topics.pipelines", {"data": {"name": name, "topic": "orders", "state": state}, "tag": name})
    page = visit(shop, "#/consumers")
    expect(page.get_by_role("row", name="silent")).to_contain_text("running")
    assert "old" not in page.get_by_role("row", name="silent").inner_text()

    def a_minute_later(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**(body := answer.json()), "now": body["now"] + 60_000})

    page.route("**/v0/overview*", a_minute_later)
    expect(page.get_by_role("row", name="silent")).to_contain_text("running (old)")
    assert "old" not in page.get_by_role("row", name="over").inner_text()


def test_a_key_is_asked_for_and_decides_what_is_shown(visit: Visit) -> None:
    """CONSOLE-10: kept in memory only; without the scope there is no button, and nothing outside of the prefixes."""
    with ServerProcess(api_keys="boss,reader:read:pub.") as server:
        for topic in ("pub.a", "secret.b"):
            call(server, "POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, Authorization="Bearer boss")
        page = visit(server)
        key, use = page.get_by_role("textbox", name="Key"), page.get_by_role("button", name="Use it")
        key.fill("wrong")
        use.click()
        page.get_by_text("the key is not known to this server").first.wait_for()
        key.fill("reader")
        use.click()
        page.get_by_role("link", name="pub.a").click()
        page.get_by_role("link", name="Browse", exact=True).wait_for()
        assert page.get_by_role("link", name="Publish").count() == 0
        assert page.get_by_role("link", name="Delete").count() == 0
        page.goto(f"{server.url}/#/topics/pub.a/config")
        assert page.get_by_label("cap_records").is_disabled()
        assert "secret.b" not in page.content()
        page.goto(f"{server.url}/#/topics/elsewhere")
        page.get_by_text("it is for names that begin with pub.").wait_for()
        page.goto(f"{server.url}/#/keys")
        page.get_by_text("yours").wait_for()
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("button", name="Key").click()
        key.fill("wrong")
        use.click()
        page.get_by_text("The key is not known to this server").first.wait_for()
        assert page.locator("#who").inner_text() == "", "nothing is said of the key before it"
        key.fill("boss")
        use.click()
        expect(page.locator("tbody tr")).to_have_count(2)
        assert "reader" not in page.content()
        assert "boss" not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        page.reload()
        page.get_by_text("This server asks for a key.").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Enter a key").wait_for()


def test_a_lost_server_is_shown_and_comes_back(visit: Visit) -> None:
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


def test_an_error_is_shown_with_what_the_server_says(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-16: code, value and limit; and the page goes on."""
    call(shop, "PUT", "/v0/topics/full", {"cap_records": 1, "discard": "reject"})
    write(shop, "full", {"data": 1})
    page = visit(shop, "#/topics/full/publish")
    page.get_by_role("button", name="Publish").click()
    problem = page.get_by_role("alert").filter(has_text="topic_full")
    expect(problem).to_contain_text("422")
    page.get_by_role("link", name="Config").click()
    page.get_by_label("dead_letter").wait_for(state="detached")
    page.get_by_label("priority", exact=True).fill("5000000000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").filter(has_text="400 invalid_request")).to_be_visible()
