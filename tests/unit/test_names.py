"""Names of topics and routers (TOPIC-1, ROUTER-5)."""

from __future__ import annotations

import json

import pytest

from topics import names
from topics.errors import InvalidRequest
from topics.names import check_router_name, check_topic_name


@pytest.mark.parametrize("name", ["a", "0", "render-queue:tenantA", "A.b_c:d-e", "x" * 255])
def test_a_name_of_the_documented_form_is_taken(name: str) -> None:
    """TOPIC-1."""
    for _ in range(2):
        check_topic_name(name)
        check_router_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".a",
        "_a",
        ":a",
        "-a",
        "x" * 256,
        "a b",
        "a/b",
        "a\n",
        "a\0",
        "é",
        "aé",
        "../etc/passwd",
        "a\udc80",
        "\uff11",
    ],
)
def test_any_other_name_is_refused_every_time(name: str) -> None:
    """TOPIC-1, TOPIC-2."""
    for check in (check_topic_name, check_router_name) * 2:
        with pytest.raises(InvalidRequest) as refused:
            check(name)
        assert (refused.value.status, refused.value.code) == (400, "invalid_request")
        assert refused.value.detail["rule"] in (names.TOPIC_NAME, names.ROUTER_NAME)
        json.dumps(refused.value.detail["name"]).encode()
        refused.value.message.encode()


def test_only_a_router_name_may_hold_an_arrow() -> None:
    """ROUTER-5."""
    check_router_name("jobs->audit")

    with pytest.raises(InvalidRequest, match='"jobs->audit" is not a topic name'):
        check_topic_name("jobs->audit")


def test_a_router_name_that_passed_is_still_no_topic_name() -> None:
    check_router_name("a>b")
    check_router_name("a>b")

    with pytest.raises(InvalidRequest):
        check_topic_name("a>b")


def test_a_long_bad_name_is_cut_in_the_error() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_topic_name("x" * 30_000)

    assert len(refused.value.message) < 500


def test_the_memory_of_names_is_bounded() -> None:
    for serial in range(names.REMEMBERED_NAMES_MAX + 10):
        check_topic_name(f"bounded.{serial}")
        check_router_name(f"bounded>{serial}")

    assert len(names._topics_seen) <= names.REMEMBERED_NAMES_MAX
    assert len(names._routers_seen) <= names.REMEMBERED_NAMES_MAX
