"""The overview: rates and losses that are noticed in rounds, and answers that are bounded and cheap (CONSOLE-13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.server import ManualServer
from topics.engine import ConfigPatch, Write
from topics.engine.log.loss import CORRUPTION
from topics.server.api import overview as overview_module
from topics.server.api import rounds as rounds_module
from topics.server.api.rounds import Rounds
from topics.testing import MemoryEngine

QUIET_MS = rounds_module.QUIET_NS // 1_000_000


def write(engine: MemoryEngine, topic: str, count: int = 1) -> None:
    engine.write(topic, Write.of(list(range(count))))


def look(engine: MemoryEngine, rounds: Rounds, ms: int = 1000) -> None:
    engine.pass_time(ms)
    rounds.step()


def test_rates_are_those_between_the_last_two_looks() -> None:
    """CONSOLE-13."""
    engine = MemoryEngine()
    rounds = Rounds(engine)
    write(engine, "a", 5)
    write(engine, "b")
    look(engine, rounds)
    assert rounds.rate("a") is None
    write(engine, "a", 30)
    look(engine, rounds, 2000)
    assert (rounds.rate("a"), rounds.rate("b"), rounds.total) == (15.0, 0.0, 15.0)
    assert list(rounds.growing) == ["a"]
    write(engine, "a", 30)
    look(engine, rounds, 10)
    assert rounds.rate("a") == 15.0, "a look that comes too soon changes nothing"
    engine.delete_topic("a")
    look(engine, rounds)
    look(engine, rounds)
    assert (rounds.rate("a"), rounds.total, rounds.growing) == (None, 0.0, {})


def test_a_topic_that_is_created_anew_has_no_rate_of_the_old_one() -> None:
    """CONSOLE-13."""
    engine = MemoryEngine()
    rounds = Rounds(engine)
    write(engine, "a", 50)
    look(engine, rounds)
    write(engine, "a", 50)
    look(engine, rounds)
    engine.delete_topic("a")
    write(engine, "a", 3)
    look(engine, rounds)
    assert (rounds.rate("a"), rounds.total) == (None, 0.0)


def test_many_topics_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONSOLE-13: a step has a bound, and a round reaches every topic."""
    monkeypatch.setattr(rounds_module, "STEP_TOPICS", 3)
    engine = MemoryEngine()
    rounds = Rounds(engine)
    names = [f"t{n}" for n in range(7)]
    for name in names:
        write(engine, name)
    for _ in range(3):
        look(engine, rounds)
    for name in names:
        write(engine, name, 6)
    look(engine, rounds)
    assert [name for name in names if rounds.rate(name)] == names[:3]
    look(engine, rounds)
    look(engine, rounds)
    assert [rounds.rate(name) for name in names] == [2.0] * 7
    assert rounds.total == pytest.approx(14.0)


def test_losses_are_noticed_with_their_range_and_reason() -> None:
    """CONSOLE-14: what was lost before the first look has no time."""
    engine = MemoryEngine()
    rounds = Rounds(engine)
    engine.put_topic("capped", ConfigPatch(cap_records=2))
    engine.put_topic("old", ConfigPatch(ttl_ms=1500))
    write(engine, "capped", 5)
    write(engine, "old", 2)
    look(engine, rounds)
    write(engine, "capped", 4)
    engine.topics["old"].log.lose(3, 4, CORRUPTION)
    engine.pass_time(1000)
    engine.topics["old"].expire(engine.clock.now_ms())
    rounds.step()
    now = engine.clock.now_ms()
    shown = [
        (loss.topic, loss.reason, loss.first_seq, loss.last_seq, loss.noticed_ts) for loss in rounds.losses.values()
    ]
    assert sorted(shown) == [("capped", "cap", 1, 7, now), ("old", "corruption", 3, 4, now), ("old", "ttl", 1, 2, now)]
    late = Rounds(engine)
    late.step()
    assert {loss.noticed_ts for loss in late.losses.values()} == {None}


def test_kept_losses_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONSOLE-14: those that were noticed last stay."""
    monkeypatch.setattr(rounds_module, "LOSSES_MAX", 3)
    engine = MemoryEngine()
    rounds = Rounds(engine)
    for name in "abcde":
        engine.put_topic(name, ConfigPatch(cap_records=1))
        write(engine, name, 2)
    look(engine, rounds)
    assert [topic for topic, _, _ in rounds.losses] == ["a", "b", "c"]
    write(engine, "e", 2)
    look(engine, rounds)
    assert [topic for topic, _, _ in rounds.losses] == ["b", "c", "e"]


def ask(server: ManualServer, question: str = "", *headers: str) -> Any:
    (reply,) = server.send("GET", f"/v0/overview?{question}", None, *headers).replies()
    return reply.json


@pytest.fixture
def shop() -> ManualServer:
    server = ManualServer()
    for n in range(12):
        server.send("POST", f"/v0/topics/t{n:02}", {"records": [{"data": "x" * n}] * (n + 1)})
    return server


def shown(answer: Any) -> list[str]:
    return [row["topic"] for row in answer["topics"]]


def test_an_answer_has_a_bounded_number_of_topics_in_the_order_that_was_asked_for(shop: ManualServer) -> None:
    """CONSOLE-13."""
    answer = ask(shop, "limit=3&order=name")
    assert (shown(answer), answer["topics_complete"], answer["server"]["topics"]) == (["t00", "t01", "t02"], True, 12)
    assert shown(ask(shop, "limit=2&order=records")) == ["t11", "t10"]
    assert shown(ask(shop, "limit=2&order=bytes")) == ["t11", "t10"]
    assert shown(ask(shop, "order=name&filter=T1")) == ["t10", "t11"]
    assert shown(ask(shop, "topic=t07")) == ["t07"]
    assert shown(ask(shop, "topic=none")) == []
    ask(shop)
    shop.clock.advance(1000)
    shop.send("POST", "/v0/topics/t05", {"records": [{"data": 1}] * 9})
    assert shown(ask(shop, "limit=1")) == ["t05"]
    assert ask(shop, "order=size")["error"]["code"] == "invalid_request"


def test_with_very_many_topics_those_that_grow_are_still_found(
    shop: ManualServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONSOLE-13: and the answer says that it has not looked at all of them."""
    monkeypatch.setattr(overview_module, "CANDIDATES_MAX", 3)
    ask(shop)
    shop.clock.advance(1000)
    shop.send("POST", "/v0/topics/t11", {"records": [{"data": 1}] * 9})
    answer = ask(shop, "limit=1")
    assert (shown(answer), answer["topics_complete"]) == (["t11"], False)


def test_an_answer_is_given_again_for_a_moment(shop: ManualServer) -> None:
    """CONSOLE-13: so that many who look cost as much as one."""
    first = ask(shop, "topic=t00")["topics"][0]["head_seq"]
    shop.send("POST", "/v0/topics/t00", {"records": [{"data": 1}]})
    assert ask(shop, "topic=t00")["topics"][0]["head_seq"] == first
    shop.clock.advance(1000)
    assert ask(shop, "topic=t00")["topics"][0]["head_seq"] == first + 1


def test_a_key_sees_its_own_topics_and_losses_only() -> None:
    """CONSOLE-10, AUTH-15."""
    server = ManualServer(keys="boss,mine:read:a.")
    boss, mine = "Authorization: Bearer boss", "Authorization: Bearer mine"
    for name in ("a.x", "b.y"):
        server.send("PUT", f"/v0/topics/{name}", {"cap_records": 1}, boss)
        server.send("POST", f"/v0/topics/{name}", {"records": [{"data": 1}] * 3}, boss)
    everything, own = ask(server, "", boss), ask(server, "", mine)
    assert sorted(shown(everything)) == ["a.x", "b.y"]
    assert (shown(own), [loss["topic"] for loss in own["losses"]]) == (["a.x"], ["a.x"])
    assert shown(ask(server, "topic=b.y", mine)) == []


def lose(server: ManualServer, topic: str, *headers: str) -> None:
    server.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}] * 3}, *headers)


def test_losses_are_noticed_while_nobody_looks() -> None:
    """CONSOLE-14: with the time of the loss, not of the first look; and each key gets its own."""
    server = ManualServer(keys="boss,mine:read:a.")
    boss, mine = "Authorization: Bearer boss", "Authorization: Bearer mine"
    server.assembly.governor.start()
    for name in ("a.x", "b.y"):
        server.send("PUT", f"/v0/topics/{name}", {"cap_records": 1}, boss)
    server.loop.advance(QUIET_MS + 200)
    lost_ms = server.clock.now_ms()
    lose(server, "a.x", boss)
    lose(server, "b.y", boss)
    server.loop.advance(20 * QUIET_MS, step_ms=100)
    losses = {loss["topic"]: loss for loss in ask(server, "", boss)["losses"]}
    assert {name: (loss["first_seq"], loss["last_seq"]) for name, loss in losses.items()} == {
        "a.x": (1, 2),
        "b.y": (1, 2),
    }
    assert all(lost_ms <= loss["noticed_ts"] <= lost_ms + QUIET_MS + 200 for loss in losses.values())
    assert [loss["topic"] for loss in ask(server, "", mine)["losses"]] == ["a.x"]


def test_nothing_is_noticed_before_the_log_is_replayed() -> None:
    """CONSOLE-14: a topic that is half replayed has lost nothing."""
    server = ManualServer(replayed=0.5)
    server.assembly.governor.start()
    server.engine.put_topic("t", ConfigPatch(cap_records=1))
    server.loop.advance(2 * QUIET_MS, step_ms=100)
    server.engine.write("t", Write.of([1, 2, 3]))
    server.loop.advance(2 * QUIET_MS, step_ms=100)
    server.assembly.phase.serve()
    assert [loss["noticed_ts"] for loss in ask(server)["losses"]] == [None]


def test_a_rate_of_long_ago_is_no_rate() -> None:
    """CONSOLE-13: between looks that are far apart nothing is known about now."""
    engine = MemoryEngine()
    rounds = Rounds(engine)
    write(engine, "a")
    look(engine, rounds)
    write(engine, "a", 50)
    look(engine, rounds, 120_000)
    assert (rounds.rate("a"), rounds.total) == (None, 0.0)
    write(engine, "a", 10)
    look(engine, rounds)
    assert rounds.rate("a") == 10.0


def test_a_topic_that_is_new_lost_nothing_before_the_start() -> None:
    """CONSOLE-14: created and evicted between two looks."""
    engine = MemoryEngine()
    rounds = Rounds(engine)
    engine.put_topic("old", ConfigPatch(cap_records=1))
    write(engine, "old", 3)
    look(engine, rounds)
    engine.put_topic("new", ConfigPatch(cap_records=1))
    write(engine, "new", 3)
    look(engine, rounds)
    noticed = {loss.topic: loss.noticed_ts for loss in rounds.losses.values()}
    assert noticed == {"old": None, "new": engine.clock.now_ms()}


def test_a_queue_says_how_many_dead_letters_wait() -> None:
    """CONSOLE-8, AUTH-15: those that were redriven do not; a key learns nothing of a topic that it may not see."""
    server = ManualServer(keys="boss,mine:read:a.")
    boss, mine = "Authorization: Bearer boss", "Authorization: Bearer mine"
    for queue, target in (("a.q", "a.dead"), ("a.r", "b.dead")):
        config = {"type": "queue", "max_deliveries": 1, "dead_letter": target}
        server.send("PUT", f"/v0/topics/{queue}", config, boss)
        server.send("POST", f"/v0/topics/{queue}", {"records": [{"data": 1}] * 3}, boss)
        server.send("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 2}, boss)
        server.send("POST", f"/v0/topics/{queue}/nack", {"node": "w", "seqs": [1, 2]}, boss)
    server.send("POST", "/v0/topics/a.q/redrive", {"limit": 1}, boss)

    def seen(header: str) -> dict[str, tuple[Any, ...]]:
        rows = {row["topic"]: row for row in ask(server, "", header)["topics"]}
        return {name: (rows[name].get("dead_letter"), rows[name].get("dead_letters")) for name in ("a.q", "a.r")}

    assert seen(boss) == {"a.q": ("a.dead", 1), "a.r": ("b.dead", 2)}
    assert seen(mine) == {"a.q": ("a.dead", 1), "a.r": (None, None)}
