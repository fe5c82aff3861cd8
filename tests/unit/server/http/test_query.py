"""Query strings: those that came before are not read again, and what is kept of them is little."""

from __future__ import annotations

import pytest

from topics.server.http import query
from topics.server.http.query import KNOWN_CHARS_MAX, KNOWN_MAX, Query


def test_what_is_kept_of_query_strings_has_a_bound_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-12: one client cannot fill the memory with them, and a key that came as `?token=` is not kept."""
    kept: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(query, "_values", kept)
    for i in range(3 * KNOWN_MAX):
        assert Query(f"limit={i}").number("limit", 0) == i
        assert len(kept) <= KNOWN_MAX
    assert Query(f"limit={i}").number("limit", 0) == i
    long = "tag=" + "x" * KNOWN_CHARS_MAX
    assert Query(long).text("tag") == "x" * KNOWN_CHARS_MAX
    assert Query("t%6Fken=secret").text("token") == "secret"
    assert not [text for text in kept if "secret" in text or len(text) > KNOWN_CHARS_MAX]
