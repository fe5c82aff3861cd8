"""Traffic: requests are counted one by one, and looked at closely where that costs nothing to speak of."""

from __future__ import annotations

from topics.server.http.traffic import BUSY_REQUESTS, LATENCY_BOUNDS_NS, STRIDE, Histogram, Tally


def answer(tally: Tally, times: int, took_ns: int = 1_000_000) -> None:
    """What `Exchange.respond_raw` does."""
    for _ in range(times):
        if tally.unseen:
            tally.unseen -= 1
        else:
            tally.look(took_ns, 100, 300)


def test_a_bound_belongs_to_its_bucket() -> None:
    """PROBE-14: `le` is "at most"."""
    histogram = Histogram()
    for bound in (LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[0] + 1, LATENCY_BOUNDS_NS[-1] + 1):
        histogram.add(bound)
    assert histogram.buckets == [1, 1, *[0] * (len(LATENCY_BOUNDS_NS) - 2), 1]
    assert histogram.total_ns == 2 * LATENCY_BOUNDS_NS[0] + LATENCY_BOUNDS_NS[-1] + 2


def test_a_quiet_route_is_counted_exactly() -> None:
    """PROBE-14."""
    tally = Tally("POST", "/v0/topics/:topic")
    answer(tally, 7)
    tally.count_status(404)
    tally.adapt()
    answer(tally, 3)
    assert (tally.requests, sum(tally.latency.buckets)) == (10, 10)
    assert (tally.received_bytes, tally.sent_bytes) == (1_000, 3_000)
    assert tally.statuses() == {200: 9, 404: 1}


def test_a_busy_route_is_still_counted_one_by_one() -> None:
    """PROBE-14: a request that is looked at stands for those that are not; none is left out of the count."""
    tally = Tally("POST", "/v0/topics/:topic")
    answer(tally, BUSY_REQUESTS + 1)
    tally.adapt()
    for more in (1, STRIDE - 1, 5, 10 * STRIDE):
        before = tally.requests
        answer(tally, more)
        assert tally.requests == before + more
    looked_at = sum(tally.latency.buckets)
    assert tally.requests <= looked_at < tally.requests + STRIDE
    assert tally.sent_bytes == 300 * looked_at
    tally.adapt()
    answer(tally, STRIDE + 1)
    tally.adapt()
    assert tally.unseen == 0


def test_a_burst_is_looked_at_one_by_one_only_at_first() -> None:
    """PROBE-14: a route that is busy every other second is busy from the first thousand requests of each on."""
    tally = Tally("POST", "/v0/topics/:topic")
    for _ in range(2):
        answer(tally, BUSY_REQUESTS + 1)
        assert tally.unseen == 0
        answer(tally, 1)
        assert tally.unseen == STRIDE - 1
        tally.adapt()
        tally.adapt()
        answer(tally, STRIDE)


def test_a_route_that_is_quiet_again_is_exact_again() -> None:
    """PROBE-14."""
    tally = Tally("GET", "/")
    answer(tally, BUSY_REQUESTS + 1)
    tally.adapt()
    answer(tally, 2 * STRIDE)
    tally.adapt()
    tally.adapt()
    answer(tally, 2)
    bytes_before = tally.received_bytes
    answer(tally, 1)
    assert tally.received_bytes == bytes_before + 100
