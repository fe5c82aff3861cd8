"""The pages refer only to what exists: files, headings and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "bench", "examples") for page in (ROOT / folder).rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(prose(page)):
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_every_test_that_durability_names_exists() -> None:
    named = TEST.findall((ROOT / "docs" / "durability.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") if test else (ROOT / path).exists(), path
