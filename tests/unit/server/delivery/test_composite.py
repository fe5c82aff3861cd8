"""The composite cursor (WATCH-15, WATCH-19)."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest
from topics.server.delivery.composite import NAMED_TOPICS_MAX, Layout, Position

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)


def test_id_is_base64url_json_without_padding() -> None:
    """WATCH-15."""
    assert Layout(["jobs", "events"]).encode([5210, 88130], {}) == b"eyJqb2JzIjo1MjEwLCJldmVudHMiOjg4MTMwfQ"


@given(st.lists(names, unique=True, max_size=100), st.data())
def test_decode_is_the_inverse_of_encode(topics: list[str], data: st.DataObject) -> None:
    """One id restores every position and every changed epoch, named or as a token."""
    layout = Layout(topics)
    seqs = [data.draw(st.integers(0, 2**53)) for _ in topics]
    epochs = {i: i + 1 for i in range(len(topics)) if data.draw(st.booleans())}
    found = layout.decode(layout.encode(seqs, epochs))
    assert found == {name: Position(seqs[i], epochs.get(i)) for i, name in enumerate(layout.names)}


def test_many_topics_make_a_token_that_fits_a_header() -> None:
    """WATCH-15: above 64 topics."""
    layout = Layout([f"{'n' * 250}{i}" for i in range(256)])
    assert not layout.named
    assert len(layout.encode([2**53] * 256, {})) < 4096
    assert Layout(["a"] * NAMED_TOPICS_MAX).named


@pytest.mark.parametrize(
    "id",
    [
        "",
        "%%",
        "bm8",
        "e30x",
        "W10",
        "~",
        "~AAAA",
        "MQ",
        base64.urlsafe_b64encode(json.dumps({"b": 1}).encode()).decode(),
    ],
)
def test_malformed_and_foreign_ids_are_refused(id: str) -> None:
    """WATCH-19: clear errors."""
    with pytest.raises(InvalidRequest):
        Layout(["a"]).decode(id)


@given(st.binary(max_size=80))
def test_no_bytes_make_decode_fail_otherwise(raw: bytes) -> None:
    """Whatever a client sends, the answer is a position or a 400."""
    for layout in (Layout(["a"]), Layout([f"t{i}" for i in range(70)])):
        for id in (raw, b"~" + raw, base64.urlsafe_b64encode(raw)):
            try:
                layout.decode(id)
            except InvalidRequest:
                continue


def test_token_of_other_topics_is_refused() -> None:
    one, other = Layout([f"a{i}" for i in range(70)]), Layout([f"b{i}" for i in range(70)])
    with pytest.raises(InvalidRequest):
        other.decode(one.encode([1] * 70, {}))
