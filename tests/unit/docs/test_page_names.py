"""The pages that teach can be followed one after the other on one server: each has topics and routers of its own."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("start", "concepts", "queues", "cli", "python", "javascript")),
    *DOCS.glob("guides/*.md"),
    *DOCS.glob("moving/*.md"),
]
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME = r"[\w.:{}>-]+"
NAMED = [
    re.compile(rf"(?:/v0/(?:topics|routers)|\$T)/({NAME})"),
    re.compile(rf"\b(?:topic|queue|producer|worker|consumer|put_router)\(f?[\"'`]({NAME})"),
    re.compile(rf"\b(?:source|dest|dead_letter)\"?[:=] ?f?\"?({NAME})"),
    re.compile(rf"\btopics (?:publish|create|config|tail|read|purge|queue \w+|router add) ({NAME})"),
]


def names(page: Path) -> set[str]:
    """The topics, routers and consumers in the blocks of a page."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    found = {name for block in blocks for pattern in NAMED for name in pattern.findall(block)}
    return found - {"queue", "source", "dest"}


def test_no_two_pages_use_the_same_name() -> None:
    """PROOF-10: what one page has left on a server is not in the way of the next."""
    found = {page: names(page) for page in PAGES}
    assert all(found.values())
    for one, other in combinations(PAGES, 2):
        assert not found[one] & found[other], f"{one.name} and {other.name}"


def test_names_are_found_wherever_a_page_may_write_them() -> None:
    """PROOF-10: the instrument."""
    found = set.union(*map(names, PAGES))
    for name in ("orders", "shop", "cafe.jobs.dead", "temperature-to-archive", "uploads->jobs", "latest", "mails.dead"):
        assert name in found
    for name in ("sales", "billing", "shop.clicks", "lane.{lane}", "carts", "thumbnails", "kitchen.orders"):
        assert name in found
