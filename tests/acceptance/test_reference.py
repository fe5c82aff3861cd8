"""The page at /v0/docs in a real browser (OPENAPI-6)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.openapi import operations
from topics.testing import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a chromium in the dark; whatever the browser complains about fails the test."""
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_context(color_scheme="dark").new_page()
        opened.set_default_timeout(20_000)
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("console", lambda message: complaints.append(message.text))
        yield opened
        browser.close()
    assert complaints == []


def test_a_person_finds_and_reads_an_operation(page: Any) -> None:
    """OPENAPI-6: without a key; every operation is there, unfolds, and is found by what it holds."""
    with ServerProcess(api_keys="k") as server:
        document = server.request("GET", "/v0/openapi.json").json
        described = list(operations(document))
        page.goto(f"{server.url}/v0/docs#write")
        page.wait_for_selector("#write .fields")
        assert page.locator("article").count() == len(described)
        assert page.locator("#contents li").count() == len(described)
        for _, _, each in described:
            page.locator(f"#{each['operationId']} > details").evaluate("details => { details.open = true }")
            page.wait_for_selector(f"#{each['operationId']} .failures li")
        shown = page.locator("#write").inner_text()
        for text in ("POST", "/v0/topics/{topic}", "idempotency_key", "items at most 10000", "head_mismatch", "curl"):
            assert text in shown, text
        assert set(page.locator("#errors td:nth-child(2) code").all_inner_texts()) == set(document["x-errors"])
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 27)"

        page.keyboard.press("/")
        page.keyboard.type("before_seq")
        page.wait_for_function("document.querySelectorAll('article:not([hidden])').length === 1")
        assert page.locator("article:visible").get_attribute("id") == "deleteRecords"
        assert page.locator("#contents li:visible").count() == 1
        page.keyboard.press("Escape")
        page.wait_for_function(f"document.querySelectorAll('article:not([hidden])').length === {len(described)}")
