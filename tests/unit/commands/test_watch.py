"""The rates of topics, between two looks."""

from __future__ import annotations

from topics.client.answers import TopicSummary
from topics.commands.watch import LOOKS_KEPT, Watch


def topic(name: str, head_seq: int) -> TopicSummary:
    return TopicSummary(name, head_seq, 1, head_seq, head_seq * 10, False, 500)


def test_a_rate_is_how_far_a_head_has_moved() -> None:
    """CLI-18: the first look knows none, a topic that is new began at 0, and so did one that was created anew."""
    watch = Watch()
    assert [row.records_per_s for row in watch.look([topic("a", 100), topic("b", 5)], {}, 10.0)] == [0, 0]
    rows = watch.look([topic("a", 100), topic("b", 25), topic("c", 8)], {}, 12.0)
    rates = [(row.topic, row.records_per_s, row.bytes_per_s) for row in rows]
    assert rates == [("b", 10, 100), ("c", 4, 40), ("a", 0, 0)]
    rows = watch.look([topic("b", 3)], {"topics_topic_queue_ready": {"b": 2.0}}, 13.0)
    assert [(row.topic, row.records_per_s, row.ready, row.in_flight) for row in rows] == [("b", 3, 2, None)]
    assert watch.rates.keys() == {"b"}, "what is gone is forgotten"


def test_the_picture_shows_the_last_looks() -> None:
    watch = Watch()
    for second in range(LOOKS_KEPT + 10):
        watch.look([topic("a", second**2)], {}, float(second))
    picture = watch.picture("a")
    assert len(picture) == LOOKS_KEPT
    assert picture[-1] == "█"
    assert list(picture) == sorted(picture)
