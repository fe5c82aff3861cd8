"""`topics router` and `topics consumer`."""

from __future__ import annotations

import time

from tests.harness.api import Api, StartServer
from tests.harness.commands import Shell


def test_routers_are_added_listed_drawn_and_removed(start_server: StartServer) -> None:
    """CLI-17."""
    shell = Shell(start_server().url)
    assert "there are no routers" in shell.run("router", "graph")[1]
    shell.out("router", "add", "orders", "audit")
    shell.out("router", "add", "orders", "eu", "--tag", "eu*", "--exactly-once")
    shell.out("router", "add", "audit", "archive", "--name", "old")
    assert "--allow-cycle permits it" in shell.fails(1, "router", "add", "archive", "orders")
    shell.out("router", "add", "archive", "orders", "--allow-cycle")
    shell.run("publish", "orders", "1", "--tag", "eu-1")

    listed = {row["router"]: row for row in shell.json("router", "ls")}
    assert (listed["orders->eu"]["filter"], listed["orders->eu"]["guarantee"]) == (
        ["tag", "Glob", "eu*"],
        "exactly_once",
    )
    assert [row.split()[-1] for row in shell.out("router", "ls", "--source", "orders").splitlines()] == [
        "ROUTER",
        "orders->audit",
        "orders->eu",
    ]
    shell.out("router", "rm", "archive->orders", "--yes")
    drawn = shell.out("router", "graph")
    assert drawn.splitlines()[0] == "orders"
    assert "├─▶ audit" in drawn
    assert "│   └─▶ archive" in drawn
    assert "└─▶ eu [eu*]" in drawn
    assert '"orders" -> "eu" [label="eu*"];' in shell.out("router", "graph", "--dot")
    assert "t3 -->" in shell.out("router", "graph", "--mermaid")
    assert {each["dest"] for each in shell.json("router", "graph")} == {"audit", "eu", "archive"}
    assert 'did you mean "orders->eu"' in shell.fails(5, "router", "rm", "orders->ue", "-y")


def test_consumers_are_listed_with_their_lag(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-17."""
    cursors = f"{topic_name}.cursors"
    api.fill(topic_name, 10)
    commit = {"consumer": "mail", "cursors": {topic_name: {"seq": 4}}, "committed_ts": int(time.time() * 1000) - 5_000}
    api.write(cursors, {"data": commit, "tag": "mail"})

    head, row = shell.out("consumer", "ls", "--cursors", cursors).splitlines()
    assert head.split() == ["LAG", "CURSOR", "COMMITTED", "TOPIC", "CONSUMER"]
    assert (row.split()[:2], row.split()[-2:]) == (["6", "4"], [topic_name, "mail"])
    assert shell.json("consumer", "ls", "--cursors", cursors)[0]["lag"] == {topic_name: 6}
