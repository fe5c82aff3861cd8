"""The pages refer only to what exists: files, headings and tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "bench", "examples") for page in (ROOT / folder).rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def _load(tool: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(tool, ROOT / "tools" / f"{tool}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_page_is_in_the_nav_of_the_site_once() -> None:
    """PROOF-10: a page that is missing here is found by nobody; add it to mkdocs.yml."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- [^:\n]+: (\S+)$", nav, re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_every_picture_is_on_a_page_and_says_what_it_shows() -> None:
    """PROOF-10: for readers who do not see it."""
    shown = [
        ((page.parent / path).resolve(), words)
        for page in PAGES
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", prose(page))
    ]
    assert {path for path, _ in shown} >= set((ROOT / "docs" / "images").iterdir())
    assert all(len(words.split()) >= 3 for _, words in shown)


def test_the_site_has_no_links_out_of_the_pages() -> None:
    """PROOF-10: what is in the repository and no page becomes a path; other links stay as they are."""
    hook = _load("docs_hook")
    for text, page, expected in (
        ("[a](../api.md)", "guides/x.md", "[a](../api.md)"),
        ("[unit](../deploy/topics.service)", "operations.md", "unit (`deploy/topics.service`)"),
        ("[`deploy/Caddyfile`](../deploy/Caddyfile)", "operations.md", "`deploy/Caddyfile`"),
        ("[walk](../../README.md#walk)", "guides/x.md", "walk (`README.md`)"),
        ("[web](https://example.com/a)", "x.md", "[web](https://example.com/a)"),
        ("![p](../images/a.svg)", "guides/x.md", "![p](../images/a.svg)"),
        ("[here](#anchor)", "x.md", "[here](#anchor)"),
    ):
        assert hook.within(text, page) == expected
