"""Families of metrics as text and as values (PROBE-6): read back with the parser of Prometheus's own library."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from topics.server.api.exposition import Buckets, Counter, Family, Gauge, Info, Summary, labelled, text, values

AWKWARD = 'a "b" \\ c\nd, {e}'


def read_back(family: Family) -> tuple[str, str, dict[tuple[str, tuple[str, ...]], float]]:
    (parsed,) = text_string_to_metric_families(text([family]).decode())
    samples = {(sample.name, tuple(sample.labels.values())): sample.value for sample in parsed.samples}
    return parsed.type, parsed.documentation, samples


def test_a_gauge_has_its_value_and_its_help() -> None:
    """PROBE-6."""
    assert read_back(Gauge("g", "A \\ and\nmore.", 1.5)) == ("gauge", "A \\ and\nmore.", {("g", ()): 1.5})


def test_a_text_of_a_label_is_given_as_it_is() -> None:
    """PROBE-8: whatever a label holds, it ends neither its line nor its quotes."""
    family = labelled("g", "h", "topic", [(AWKWARD, 1), ("plain", 2)])
    assert read_back(family)[2] == {("g", (AWKWARD,)): 1, ("g", ("plain",)): 2}
    assert values([family]) == {"g": {AWKWARD: 1, "plain": 2}}


def test_counters_have_the_suffix_that_prometheus_expects() -> None:
    """PROBE-6."""
    kind, _, samples = read_back(Counter("c", "h", 3))
    assert (kind, samples) == ("counter", {("c_total", ()): 3})
    assert text([Counter("c", "h", 3)]) == b"# HELP c_total h\n# TYPE c_total counter\nc_total 3.0\n"


def test_buckets_have_bounds_count_and_sum() -> None:
    """PROBE-14."""
    family = Buckets("b", "h", labels=("route",))
    family.add_buckets(["/x"], [("0.1", 2), ("+Inf", 5)], 7.5)
    kind, _, samples = read_back(family)
    assert kind == "histogram"
    assert samples == {
        ("b_bucket", ("/x", "0.1")): 2,
        ("b_bucket", ("/x", "+Inf")): 5,
        ("b_count", ("/x",)): 5,
        ("b_sum", ("/x",)): 7.5,
    }


def test_a_summary_and_texts() -> None:
    """PROBE-16, PROBE-17."""
    assert read_back(Summary("s", "h", 4, 0.5)) == ("summary", "h", {("s_count", ()): 4, ("s_sum", ()): 0.5})
    assert read_back(Info("i", "h", {"version": "1"}))[2] == {("i_info", ("1",)): 1}
