"""`topics create`, `config`, `ls`, `show`, `purge` and `rm`."""

from __future__ import annotations

from tests.harness.api import Api
from tests.harness.commands import Shell


def test_a_topic_is_created_configured_and_shown(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-13: fields have the names of the API, and spans and sizes may have units."""
    said = shell.out("create", topic_name, "ttl=7d", "cap_bytes=10MB", "durability=fsync", "priority=5")
    assert said == (
        f"created the topic {topic_name} (fsync): ttl_ms=604800000 cap_bytes=10000000 durability=fsync priority=5\n"
    )
    config = api.state(topic_name)["config"]
    assert (config["ttl_ms"], config["cap_bytes"], config["priority"]) == (604_800_000, 10_000_000, 5)

    shell.out("config", topic_name, "priority=none", "auto_priority=false", "ttl_ms=1500")
    config = api.state(topic_name)["config"]
    assert (config["ttl_ms"], config["priority"], config["auto_priority"]) == (1_500, None, False)
    assert config["cap_bytes"] == 10_000_000, "what is not named stays"
    shown = dict(line.split(maxsplit=1) for line in shell.out("config", topic_name).splitlines())
    assert (shown["ttl_ms"], shown["cap_bytes"]) == ("1500 (1.5s)", "10000000 (10.0 MB)")
    assert "lease_ms" not in shown
    assert shell.json("config", topic_name) == [config]
    assert shell.json("show", topic_name)[0]["config"] == config


def test_what_exists_or_is_misspelt_is_not_created(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-13."""
    shell.out("create", topic_name, "--queue", "lease=1m")
    assert api.state(topic_name)["config"]["lease_ms"] == 60_000
    assert "exists already; `topics config" in shell.fails(1, "create", topic_name, "ttl=1s")
    other = f"{topic_name}.other"
    for field, expected in (
        ("tll=7d", 'no field "tll"; did you mean "ttl"?'),
        ("ttl=7y", '"7y" is not a span of time'),
        ("cap_bytes=10X", '"10X" is not a size'),
        ("cap_records=many", "must be a whole number"),
        ("durability=safe", "must be ephemeral, memory, disk or fsync"),
        ("auto_priority=maybe", "must be true or false"),
        ("ttl", "is not FIELD=VALUE"),
    ):
        assert expected in shell.fails(2, "create", other, field)
    assert not api.exists(other)


def test_topics_are_listed_by_prefix_and_by_pattern(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-8."""
    for name in ("a.log", "b.log", "c"):
        api.fill(f"{topic_name}.{name}", 2)
    listed = [row["topic"] for row in shell.json("ls", f"{topic_name}.")]
    assert listed == [f"{topic_name}.{name}" for name in ("a.log", "b.log", "c")]
    assert [row["count"] for row in shell.json("ls", f"{topic_name}*.log")] == [2, 2]
    assert "no topic is like" in shell.fails(5, "ls", f"{topic_name}*.none")


def test_what_cannot_be_undone_needs_a_yes(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-14: without a terminal nothing is asked, and nothing is done."""
    one, two = f"{topic_name}.1", f"{topic_name}.2"
    api.fill(one, 3)
    api.fill(two, 2)
    shell.out("router", "add", one, two, "--name", f"{topic_name}-r")
    for command in (
        ("rm", one),
        ("purge", one),
        ("delete", one, "--before-seq", "2"),
        ("router", "rm", f"{topic_name}-r"),
    ):
        assert shell.fails(2, *command).endswith("Nobody is there to answer: say --yes if you mean it")
    assert (api.state(one)["count"], api.state(two)["count"]) == (3, 2)

    assert shell.out("purge", one, "--yes") == f"deleted 3 records of {one}\n"
    assert (api.state(one)["count"], api.state(one)["head_seq"]) == (0, 3)
    assert f"the routers {topic_name}-r" in shell.out("rm", f"{topic_name}.*", "-y")
    assert not api.exists(one)
    assert not api.exists(two)
    assert "does not exist" in shell.fails(5, "rm", one, "--yes")


def test_a_misspelt_topic_comes_with_the_names_that_were_meant(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-9."""
    api.put(f"{topic_name}-orders")
    api.put(f"{topic_name}-orders2")
    said = shell.fails(5, "show", f"{topic_name}-oders")
    assert said.startswith(
        f'topics show: topic "{topic_name}-oders" does not exist (404 topic_not_found); did you mean'
    )
    assert f'"{topic_name}-orders"' in said
