"""A Block rendered as one text reads the same as its records rendered one by one (HTTP-9)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.log.render import WITH_DATA, WITH_META, WITH_TAG, Each, WireCache, render, render_whole
from topics.storage import block

TEXTS = st.text(min_size=0, max_size=6).map(str.encode)
LABELS = st.none() | TEXTS
DATAS = st.sampled_from([b"1", b"1.10", b'"\xc3\xa4"', b'{"a" : 1}', b"[1,2]", b"12345678901234567890", b"x" * 300])
METAS = st.none() | st.just(b'{"k":"v"}')


@st.composite
def blocks(draw: st.DrawFn) -> block.Block:
    n = draw(st.integers(1, 30))
    column = lambda values: draw(st.none() | st.lists(values, min_size=n, max_size=n))  # noqa: E731
    first_ts = draw(st.sampled_from([0, 9, 999_999_999_999, 1_790_000_000_000]))
    steps = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    times = [first_ts + sum(steps[: i + 1]) for i in range(n)]
    return block.encode(
        7,
        draw(st.sampled_from([1, 5, 95, 999_990, 2**63])),
        times if draw(st.booleans()) else first_ts,
        draw(st.lists(DATAS, min_size=n, max_size=n)),
        column(LABELS),
        column(LABELS),
        column(METAS),
    )


@given(blocks(), st.sampled_from([0, WITH_DATA, WITH_TAG, WITH_DATA | WITH_META, WITH_DATA | WITH_META | WITH_TAG]))
def test_whole_block_reads_as_its_records_one_by_one(encoded: block.Block, fields: int) -> None:
    """HTTP-9: every record is the same object whichever records it is read with."""
    parts = render(encoded, fields)
    wire = render_whole(encoded, fields)
    assert wire.text == b",".join(parts)
    assert [wire.slice(i, i + 1) for i in range(encoded.n)] == parts
    assert wire.slice(0, encoded.n) == wire.text
    each = Each(encoded, fields)
    assert [each[i] for i in range(encoded.n)] == parts


@pytest.mark.parametrize("n", [1, 3])
def test_large_records_read_as_any_other(n: int) -> None:
    """HTTP-9: also where their text is not copied before it is joined."""
    encoded = block.encode(7, 95, 1_790_000_000_000, [b'"%b"' % (b"x" * 200_000)] * n)
    wire = render_whole(encoded, WITH_DATA)
    assert wire.text == b",".join(render(encoded, WITH_DATA))
    assert wire.slice(0, n) is wire.text, "a read of all of it copies nothing"


@pytest.mark.parametrize("first_seq", [1, 95])
def test_number_of_digits_may_grow_inside_a_block(first_seq: int) -> None:
    """Offsets hold where `$seq` gains a digit."""
    encoded = block.encode(1, first_seq, 1_790_000_000_000, [b"1"] * 20)
    wire = render_whole(encoded, WITH_DATA)
    seqs = [msgspec.json.decode(wire.slice(i, i + 1))["$seq"] for i in range(20)]
    assert seqs == list(range(first_seq, first_seq + 20))


@pytest.mark.parametrize("runs", [[1] * 100, [40, 59, 1], [1, 99], [33, 33, 34]])
def test_times_of_a_block_that_several_writes_made(runs: list[int]) -> None:
    """HTTP-9: records with the same time are next to each other, few or many of them."""
    times = [1_790_000_000_000 + 3 * i for i, run in enumerate(runs) for _ in range(run)]
    encoded = block.encode(7, 1, times, [b"1"] * 100)
    assert render_whole(encoded, WITH_DATA).text == b",".join(render(encoded, WITH_DATA))


def test_cache_counts_all_that_it_holds_and_gives_up_the_oldest() -> None:
    """STORE-6: the text, the offsets and the Block, which may be nowhere else any more."""
    made = [block.encode(7, 1 + 100 * i, 5, [b'"0123456789"'] * 100) for i in range(20)]
    one = render_whole(made[0], WITH_DATA)
    each = len(one.text) + 8 * len(one.at) + len(made[0].raw)
    cache = WireCache(bytes_max=5 * each + each // 2)
    for content in made:
        cache.get(content, WITH_DATA)
        assert cache.bytes <= cache.bytes_max
    assert 4 * each <= cache.bytes
    assert [found is content for (found, _, _), content in zip(cache._wires.values(), made[-5:], strict=True)] == [
        True
    ] * 5
