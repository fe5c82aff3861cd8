"""The rules of offsets and admission that need no Spark."""

from __future__ import annotations

import json

import pytest

from topics.spark import offsets
from topics.spark.errors import SourceError
from topics.spark.offsets import Cursor, WantedOffsets

pytestmark = pytest.mark.spark


def test_offsets_are_rendered_in_the_order_of_their_topics() -> None:
    """Spark compares offsets as text."""
    one = offsets.render({"b": Cursor(1, 5), "a": Cursor(2, 7)})
    other = offsets.render({"a": Cursor(2, 7), "b": Cursor(1, 5)})
    assert json.dumps(one) == json.dumps(other) == '{"a": {"epoch": 2, "seq": 7}, "b": {"epoch": 1, "seq": 5}}'
    assert offsets.parse(json.loads(json.dumps(one))) == {"a": Cursor(2, 7), "b": Cursor(1, 5)}


def test_offsets_of_another_source_are_refused() -> None:
    with pytest.raises(SourceError, match="belongs to another query"):
        offsets.parse({"topic-0": {"0": 55}})


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"a": true}', '{"a": 1.5}', '{"a": {"seq": 1}}', '{"a": "b"}'])
def test_offsets_that_are_no_cursors_are_refused(text: str) -> None:
    with pytest.raises(SourceError, match="startingOffsets"):
        WantedOffsets("startingOffsets", text)


def test_admission_never_starves_a_topic() -> None:
    """A topic with little waiting beside one with much still moves on with every batch."""
    from topics.spark.stream import _admitted

    begun = {"small": Cursor(1, 0), "large": Cursor(1, 0)}
    ends: dict[str, Cursor | None] = {"small": Cursor(1, 2), "large": Cursor(1, 100_000), "gone": None}
    admitted = _admitted(begun, ends, 100)
    assert admitted == {"small": Cursor(1, 1), "large": Cursor(1, 99)}
    assert _admitted(begun, ends, None) == {"small": Cursor(1, 2), "large": Cursor(1, 100_000)}


def test_a_first_batch_whose_start_moved_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the start of batch 0 again after a crash; "latest" is then after the batch's end."""
    from topics.spark import stream
    from topics.spark.client import Plan
    from topics.spark.options import ReadOptions
    from topics.spark.servers import Servers

    given = {"url": "http://127.0.0.1:1", "topic": "a", "startingOffsets": "latest"}
    start, end = {"a": {"epoch": 1, "seq": 250}}, {"a": {"epoch": 1, "seq": 200}}
    monkeypatch.setattr(Servers, "find", lambda servers, topic: Plan("a", 1, 250, 1, 250, 250, [], 0, 0, []))
    strict = stream.TopicsStreamReader(ReadOptions(given, streaming=True), None)
    with pytest.raises(SourceError, match=r"was planned to seq 200 .* and now starts at 250"):
        strict.partitions(start, end)
    lax = stream.TopicsStreamReader(ReadOptions({**given, "failOnDataLoss": "false"}, streaming=True), None)
    assert lax.partitions(start, end) == []
