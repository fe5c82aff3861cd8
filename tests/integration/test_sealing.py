"""A server seals what was written also when nobody writes any more, and shows what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.api import until
from topics.testing import ServerProcess

TOPICS = 60
SEALED_WITHIN_S = 8.0


def gauge(server: ServerProcess, name: str) -> float:
    """The value of a metric without labels."""
    text = server.request("GET", "/v0/metrics").body.decode()
    (value,) = (sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                if sample.name == name)  # fmt: skip
    return value


def test_idle_server_goes_on_sealing_at_once(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """STORE-17: the end of one seal begins the next; 60 topics do not take 60 seconds. PRESSURE-8: the metric falls."""
    server = start_server(data_dir=tmp_path / "data", segment_max_events=100)
    server.request("POST", "/v0/topics/small", json={"records": [{"data": n} for n in range(50)]})
    small = gauge(server, "topics_unsealed_bytes")
    assert small > 0
    for i in range(TOPICS):
        answer = server.request("POST", f"/v0/topics/t{i}", json={"records": [{"data": n} for n in range(150)]})
        assert answer.status == 201
    segments = tmp_path / "data" / "segments"
    until(
        lambda: len(list(segments.glob("*.data"))) == TOPICS and gauge(server, "topics_unsealed_bytes") == small,
        "every tail that is large enough is sealed",
        SEALED_WITHIN_S,
    )
    server.kill()
    server.start()
    assert server.request("GET", "/v0/topics/t7").json["count"] == 150


def test_ephemeral_bytes_are_shown_apart(start_server: Callable[..., ServerProcess]) -> None:
    """PRESSURE-8."""
    server = start_server()
    server.request("PUT", "/v0/topics/e", json={"durability": "ephemeral"})
    server.request("POST", "/v0/topics/e", json={"records": [{"data": "x" * 1000}]})
    assert gauge(server, "topics_unsealed_bytes") == 0
    assert gauge(server, "topics_resident_bytes") > 1000
