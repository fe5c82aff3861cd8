"""The console for everybody: screen readers, the keyboard, narrow screens, both colour schemes (CONSOLE-12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.console import PLACES, Visit, fail_jobs, go, write
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
pytestmark = pytest.mark.browser


def violations(page: Any, **options: Any) -> list[str]:
    """What axe finds on a page that is serious or critical."""
    found = page.evaluate("options => axe.run(document, options)", {"resultTypes": ["violations"], **options})
    return [
        f"{each['id']}: {node['target']} {node['html'][:120]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def test_axe_finds_nothing_serious_on_any_page_in_either_scheme(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-12."""
    page = visit(shop, color_scheme="light")
    page.evaluate(axe.AXE_SCRIPT)
    for place in PLACES:
        go(page, place)
        assert violations(page) == [], place
        page.emulate_media(color_scheme="dark")
        assert violations(page, runOnly=["color-contrast"]) == [], f"{place} in the dark"
        page.emulate_media(color_scheme="light")


def test_axe_sees_what_is_unfolded_and_what_is_asked(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-12: a record with its tree, an error, and the dialog for a key."""
    page = visit(shop, "#/topics/orders/browse/101")
    page.evaluate(axe.AXE_SCRIPT)
    page.locator("ol.records summary").first.click()
    page.locator(".json .string").first.wait_for()
    assert violations(page) == []
    go(page, "#/topics/orders/publish")
    page.get_by_label("Data, any JSON").fill("{")
    page.get_by_role("button", name="Publish").click()
    page.locator(".problem").wait_for()
    assert violations(page) == []
    page.get_by_role("button", name="Key").click()
    page.get_by_role("dialog").wait_for()
    assert violations(page) == []


def test_nothing_is_wider_than_a_narrow_screen(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-12: tables scroll by themselves."""
    page = visit(shop, viewport={"width": 360, "height": 700})
    for place in PLACES:
        go(page, place)
        wide = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        wide += " && !e.closest('.scroll, nav, .sr, pre')).map(e => e.outerHTML.slice(0, 100))"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (place, page.evaluate(wide))


def test_everything_is_reached_with_the_keyboard(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-12: from the address to a record's JSON; a table that is drawn again keeps the focus in it."""
    page = visit(shop)
    focused = "document.activeElement.textContent"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    page.get_by_role("link", name="orders", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.get_by_role("link", name="audit", exact=True).wait_for(state="detached")
    link = page.get_by_role("link", name="orders", exact=True)
    link.focus()
    page.evaluate("document.querySelector('tbody tr').dataset.old = 1")
    page.locator("tbody tr[data-old]").wait_for(state="detached")
    assert page.evaluate(focused) == "orders"
    page.keyboard.press("Enter")
    record = page.locator("ol.records summary").first
    record.wait_for()
    assert page.evaluate("document.activeElement.id") == "view"
    record.focus()
    page.keyboard.press("Enter")
    page.locator(".record[open] .json").first.wait_for()
    for key, title in (("r", "Routers"), ("c", "Consumers and pipelines"), ("g", "Overview")):
        page.keyboard.press(key)
        page.get_by_role("heading", name=title, exact=True, level=1).wait_for()
    page.keyboard.press("k")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")


def test_a_button_that_goes_with_its_work_takes_the_focus_nowhere(visit: Visit, shop: ServerProcess) -> None:
    """CONSOLE-12: whoever pressed it by the keyboard goes on from there, and not from the top of the page."""
    fail_jobs(shop, "held")
    write(shop, "forgets", {"data": 1, "tag": "me"})
    page = visit(shop, "#/topics/held")
    redrive = page.get_by_role("button", name="Redrive dead letter 1")
    redrive.focus()
    page.keyboard.press("Enter")
    redrive.wait_for(state="detached")
    assert "turned into a job again" in page.evaluate("document.activeElement.textContent")
    page.goto(f"{shop.url}/#/topics/forgets/delete")
    page.get_by_label("Tag", exact=True).fill("me")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete 1 record for good").focus()
    page.keyboard.press("Enter")
    page.get_by_text("1 record deleted.").wait_for()
    assert page.evaluate("document.activeElement.value") == "me"
    page.goto(f"{shop.url}/#/topics/forgets/config")
    page.get_by_label("cap_records").fill("7")
    page.keyboard.press("Enter")
    page.get_by_text("Saved.").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Saved."
