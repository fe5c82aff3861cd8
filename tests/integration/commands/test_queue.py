"""`topics queue`: jobs by hand."""

from __future__ import annotations

from tests.harness.api import Api
from tests.harness.commands import Shell


def test_jobs_are_claimed_acked_returned_and_redriven(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-16: what one command has claimed, the next can ack, because both are the same node."""
    dead = f"{topic_name}.dead"
    shell.out("create", topic_name, "--queue", "max_deliveries=2", f"dead_letter={dead}")
    shell.run("publish", topic_name, '{"mail": 1}', "2", "--tag", "eu")
    shell.run("publish", topic_name, "3", "--delay", "10m")

    line = shell.out("queue", "claim", topic_name).split("  ")
    assert (line[0], line[1], line[3], line[4]) == ("1", "1", "eu", '{"mail": 1}\n')
    [second] = shell.json("queue", "claim", topic_name, "-n", "5", "--lease", "5m")
    assert (second["$seq"], second["data"], second["deliveries"]) == (2, 2, 1)
    out, said = shell.run("queue", "claim", topic_name, "--data")
    assert (out, said) == ("", f"no job of {topic_name} is ready\n")

    peeked = {each["$seq"]: each for each in shell.json("queue", "peek", topic_name)}
    assert [peeked[seq]["state"] for seq in (1, 2, 3)] == ["leased", "leased", "delayed"]
    assert "@" in peeked[1]["node"]
    assert shell.out("queue", "peek", topic_name).splitlines()[1].split()[:3] == ["1", "leased", "1"]

    assert shell.out("queue", "ack", topic_name, "1") == f"acked 1 job of {topic_name}; 0 ready, 1 in flight\n"
    shell.out("queue", "nack", topic_name, "2", "--reason", "no paper")
    shell.out("queue", "claim", topic_name)
    shell.out("queue", "nack", topic_name, "2", "--reason", "no ink", "--delay", "0s")
    [stats] = shell.json("queue", "stats", topic_name)
    assert (stats["ready"], stats["in_flight"], stats["delayed"], stats["dead_letters"]) == (0, 0, 1, 1)
    [letter] = shell.json("read", dead)
    assert letter["meta"]["$dead_letter_reason"] == "no ink"

    assert shell.json("queue", "redrive", topic_name, "--dry-run")[0]["redriven"] == 1
    assert shell.out("queue", "redrive", topic_name) == (f"turned 1 dead letter of {dead} into jobs of {topic_name}\n")
    assert api.state(topic_name)["queue"]["ready"] == 1
    assert shell.out("queue", "stats", topic_name).splitlines()[1].split()[:4] == ["1", "0", "1", "0"]


def test_what_another_node_holds_is_not_acked(shell: Shell, topic_name: str) -> None:
    """CLI-16."""
    shell.out("create", topic_name, "--queue")
    shell.run("publish", topic_name, "1", "2")
    shell.out("queue", "claim", topic_name, "--node", "other")
    said = shell.fails(1, "queue", "ack", topic_name, "1")
    assert "not held by this node, and therefore skipped: 1" in said
    assert shell.json("queue", "ack", topic_name, "1", "--node", "other")[0]["acked"] == 1


def test_all_queues_are_counted_and_a_log_is_none(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-16."""
    api.put(f"{topic_name}.q", type="queue")
    api.put(f"{topic_name}.log")
    listed = [row["topic"] for row in shell.json("queue", "stats")]
    assert f"{topic_name}.q" in listed
    assert f"{topic_name}.log" not in listed
    assert "not a queue" in shell.fails(1, "queue", "stats", f"{topic_name}.*")
    assert "`topics create NAME --queue`" in shell.fails(1, "queue", "claim", f"{topic_name}.log")
