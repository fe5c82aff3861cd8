"""What mkdocs has to know about these pages beyond mkdocs.yml.

The pages are read on a code host as well, and link to files of the repository that are not pages, such as examples and
unit files. The site has no such files, so there the link becomes the path as text. That those files exist is checked by
`tests/unit/docs/test_links.py`.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(?:#[^)\s]+)?\)")


def within(text: str, page: str) -> str:
    """The text of the page at this path below docs/, with links that leave docs/ as plain paths."""

    def leave(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
        if "://" in link[2] or target.startswith("docs/"):
            return link[0]
        return link[1] if target in link[1] else f"{link[1]} (`{target}`)"

    return _LINK.sub(leave, text)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Called by mkdocs for every page."""
    return within(markdown, page.file.src_uri)
