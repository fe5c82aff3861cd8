"""Which columns JSON data asks for, and what fits into those that a table has (PIPELINE-2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from topics.pipeline.lake import shape  # noqa: E402
from topics.pipeline.lake.shape import Misfit, Shape  # noqa: E402


def seen(*values: Any) -> Shape:
    found = Shape("struct")
    for value in values:
        found.see(value)
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([2.5, 1], pa.float64()),
        ([True, False], pa.bool_()),
        (["a"], pa.string()),
        ([1, "a"], pa.string()),
        ([True, 1], pa.string()),
        ([None, 1], pa.int64()),
        ([1 << 63], pa.string()),
        ([[1], [2.5]], pa.list_(pa.float64())),
        ([[1], 1], pa.string()),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[{"a": 1}], [{"a": None, "b": True}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.bool_())]))),
        ([{"a": 1}, [1]], pa.string()),
    ],
)
def test_a_column_takes_the_narrowest_type_that_holds_all_values(values: list[Any], kind: Any) -> None:
    found = seen(*({"x": value} for value in values))
    assert found.arrow().field("x").type == kind
    again = shape.of_json(json.loads(json.dumps(found.to_json())))
    assert again.arrow() == found.arrow(), "a shape survives the way from the task to the driver"
    assert shape.of_arrow(found.arrow()).arrow() == found.arrow()


def test_the_order_in_which_shapes_are_put_together_does_not_matter_for_types() -> None:
    values = [{"x": 1}, {"x": 2.5, "y": [1]}, {"y": ["a"], "z": {"k": None}}, {"z": {"k": 1}}]
    one, other = Shape("struct"), Shape("struct")
    for value in values:
        one.take(seen(value))
    for value in reversed(values):
        other.take(seen(value))
    types = {field.name: field.type for field in one.arrow()}
    assert (
        types == {field.name: field.type for field in other.arrow()} == {f.name: f.type for f in seen(*values).arrow()}
    )


@pytest.mark.parametrize("value", [None, [], {}, {"a": None}, [[], [{}]]])
def test_what_is_empty_asks_for_no_column_and_fits_everywhere(value: Any) -> None:
    assert not seen({"x": value}).is_known
    assert Shape("struct").fit({"x": value}) == {}


def test_a_column_keeps_its_type_and_others_are_added() -> None:
    """A column of a table never changes its type: every reader counts on it."""
    columns = seen({"n": 1, "deep": {"a": 1}})
    columns.widen(seen({"n": "text", "deep": {"b": True}, "more": 2.5}))
    assert columns.arrow() == pa.struct(
        [("n", pa.int64()), ("deep", pa.struct([("a", pa.int64()), ("b", pa.bool_())])), ("more", pa.float64())]
    )
    with pytest.raises(Misfit, match=r'^data\.n is bigint, and the value is "text"$'):
        columns.fit({"n": "text"})
    with pytest.raises(Misfit, match=r"^data\.n is bigint, and the value is 1\.5$"):
        columns.fit({"n": 1.5})
    assert columns.fit({"n": 2.0, "more": 1}) == {"n": 2, "more": 1.0}


def test_a_text_column_keeps_everything_as_json_text() -> None:
    columns = seen({"x": "a"}, {"x": 1})
    assert [columns.fit({"x": value})["x"] for value in ("a", 1, [1, {"k": None}])] == ["a", "1", '[1,{"k":null}]']


def test_keys_that_would_be_one_column_are_one() -> None:
    """Readers of tables tell columns apart regardless of case, and not every character can be in a name."""
    columns = seen({"User id": 1}, {"user_ID": 2})
    assert columns.arrow() == pa.struct([("User_id", pa.int64())])
    assert columns.fit({"USER ID": 3}) == {"User_id": 3}
    with pytest.raises(Misfit, match="two keys for the column User_id"):
        columns.fit({"User id": 1, "user_id": 2})


def test_columns_and_depth_have_a_limit() -> None:
    columns = Shape("struct")
    columns.widen(seen({f"k{n}": n for n in range(shape.COLUMNS_MAX + 5)}))
    assert len(columns.arrow()) == shape.COLUMNS_MAX
    with pytest.raises(Misfit, match=r"data\.k1000 is no column"):
        columns.fit({"k1000": 1})
    deep: Any = 1
    for _ in range(shape.DEPTH_MAX + 3):
        deep = {"d": deep}
    fitted = seen(deep).fit(deep)
    for _ in range(shape.DEPTH_MAX):
        fitted = fitted["d"]
    assert fitted == '{"d":{"d":{"d":1}}}'
