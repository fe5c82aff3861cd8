"""`topics publish`, `tail`, `read` and `delete`."""

from __future__ import annotations

import json
import time

import pytest

from tests.harness.api import Api
from tests.harness.commands import Shell


def test_what_is_published_is_read_in_every_form(shell: Shell, topic_name: str) -> None:
    """CLI-6, CLI-15: data stays as it was written, byte for byte."""
    _, said = shell.run("publish", topic_name, '{"price": 1.10}', '"two"', "--tag", "a b", "--node", "n")
    assert said == f"published 2 records to the new topic {topic_name}: seqs 1 to 2\n"
    assert shell.json("publish", topic_name, "3") == [
        {"topic": topic_name, "records": 1, "first_seq": 3, "last_seq": 3, "created": False}
    ]
    assert shell.out("read", topic_name, "--data") == '{"price": 1.10}\n"two"\n3\n'
    first, *_ = shell.out("read", topic_name, "--json").splitlines()
    assert '"data":{"price": 1.10}' in first
    record = json.loads(first)
    assert (record["topic"], record["$seq"], record["$tag"], record["$node"]) == (topic_name, 1, "a b", "n")
    lines = shell.out("read", topic_name).splitlines()
    assert lines[0].startswith("1  ")
    assert lines[0].endswith('  "a b"  {"price": 1.10}')


def test_a_read_can_be_cut_by_seq_tag_node_and_number(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-15."""
    api.write(topic_name, *({"data": n, "tag": f"t{n % 3}", "node": f"n{n % 2}"} for n in range(1, 10)))

    def data(*options: str) -> list[int]:
        return [int(line) for line in shell.out("read", topic_name, "--data", *options).splitlines()]

    assert data("--from-seq", "7") == [8, 9]
    assert data("--tag", "t0") == [3, 6, 9]
    assert data("--tag", "t*", "--limit", "2") == [1, 2]
    assert data("--node", "n1") == [2, 4, 6, 8]
    assert "give one of them" in shell.fails(2, "read", topic_name, "--from-seq", "1", "--since", "1h")


def test_times_say_where_to_begin_and_end(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-15: a span ago, or a date."""
    api.write(topic_name, {"data": 1})
    first_ts = api.read(topic_name)["records"][0]["$ts"]
    while api.write(topic_name, {"data": 2}) and api.read(topic_name)["records"][-1]["$ts"] <= first_ts:
        pass
    second_ts = next(each["$ts"] for each in api.read(topic_name)["records"] if each["$ts"] > first_ts)

    assert shell.out("read", topic_name, "--data", "--until", str(second_ts)).splitlines()[0] == "1"
    later = [record["$ts"] for record in shell.json("read", topic_name, "--since", str(second_ts))]
    assert later
    assert min(later) == second_ts
    assert shell.out("read", topic_name, "--data", "--since", "1d") == shell.out("read", topic_name, "--data")
    tomorrow = time.strftime("%Y-%m-%d", time.localtime(time.time() + 2 * 86_400))
    assert shell.out("tail", topic_name, "-F", "--since", tomorrow) == ""
    assert shell.out("read", topic_name, "--until", "2001-01-01T00:00:00Z") == ""
    assert '"soon" is not a time' in shell.fails(2, "read", topic_name, "--since", "soon")


def test_several_topics_are_read_in_the_order_of_time(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-15: with the topic in the first column, and losses in their place."""
    one, two = f"{topic_name}.1", f"{topic_name}.22"
    api.put(two, cap_records=1)
    for n in range(3):
        api.write(one, {"data": f"one {n}"})
        api.write(two, {"data": f"two {n}"})
    printed = shell.json("read", f"{topic_name}.*")
    times = [each["$ts"] for each in printed if "$ts" in each]
    assert times == sorted(times)
    assert [each["data"] for each in printed if each["topic"] == one] == ["one 0", "one 1", "one 2"]
    gap, last = [each for each in printed if each["topic"] == two]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], last["data"]) == (1, 2, "cap", "two 2")
    lines = shell.out("tail", one, two, "-F", "-n", "1").splitlines()
    assert [line.split()[0] for line in lines] == [one, two]
    assert lines[0].startswith(f"{one}   3  "), "the column is as wide as the longest name"
    assert "--from-seq is for one topic" in shell.fails(2, "tail", one, two, "--from-seq", "1")


def test_records_are_deleted_by_tag_seq_and_time(shell: Shell, api: Api, topic_name: str) -> None:
    """CLI-14."""
    api.write(topic_name, *({"data": n, "tag": "eu-1" if n % 2 else "us"} for n in range(1, 9)))
    assert shell.out("delete", topic_name, "--tag", "eu*", "--before-seq", "4", "--yes") == (
        f"deleted 2 records of {topic_name}, 6 are left\n"
    )
    assert shell.out("delete", topic_name, "--before-seq", "8", "--yes") == (
        f"deleted 5 records of {topic_name}, 1 is left\n"
    )
    assert shell.json("delete", topic_name, "--tag", "us", "-y")[0]["deleted"] == 1
    assert shell.json("delete", topic_name, "--before", "1h", "-y")[0]["deleted"] == 0
    later = time.strftime("%Y-%m-%d", time.localtime(time.time() + 2 * 86_400))
    assert shell.json("delete", topic_name, "--before", later, "-y")[0]["count"] == 0
    assert "say which records" in shell.fails(2, "delete", topic_name, "--yes")


@pytest.mark.parametrize("command", ["tail", "read"])
def test_a_topic_that_does_not_exist_is_named(shell: Shell, topic_name: str, command: str) -> None:
    assert f'topic "{topic_name}" does not exist' in shell.fails(5, command, topic_name)
