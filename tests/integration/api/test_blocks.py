"""The binary endpoint that a scan reads, and the plan it starts from."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tests.harness.api import Api, StartApi
from topics.storage import block as blocks
from topics.storage.block import Block
from topics.storage.flags import DELETED

Header = dict[str, Any]


def fetch(api: Api, topic: str, query: str = "") -> tuple[Header, list[Block]]:
    reply = api.get(f"/v0/topics/{topic}/blocks{query}")
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/octet-stream"
    magic, length = struct.unpack_from("<4sI", reply.body)
    assert magic == b"TBKS"
    at = 8 + length
    header = json.loads(reply.body[8:at])
    found = []
    while at < len(reply.body):
        block, at = blocks.decode(reply.body, at)
        found.append(block)
    assert len(found) == header["blocks"]
    return header, found


def live(found: list[Block]) -> dict[int, Any]:
    """The live records by seq."""
    return {
        block.first_seq + i: json.loads(block.data(i))
        for block in found
        for a, b in block.live_runs(0, block.n)
        for i in range(a, b)
    }


def plan(api: Api, topic: str, query: str = "") -> Header:
    return api.get(f"/v0/topics/{topic}/plan{query}").ok(200)


def test_blocks_hold_every_record_with_its_columns(api: Api, topic_name: str) -> None:
    """A scan reads what a diff reads: node, tag, meta, data, in seq order."""
    api.write(topic_name, {"data": {"n": 1}, "tag": "t", "node": "a", "meta": {"k": "v"}}, {"data": [2]})
    header, (block,) = fetch(api, topic_name)
    assert live([block]) == {1: {"n": 1}, 2: [2]}
    assert (block.node(0), block.tag(0), block.meta(0)) == (b"a", b"t", b'{"k": "v"}')
    assert (block.node(1), block.tag(1), block.meta(1)) == (None, None, None)
    assert (header["head_seq"], header["next_from_seq"], header["earliest_seq"]) == (2, 2, 1)
    assert header["caught_up"] is True
    assert header["tombstone"] is None


def test_small_writes_are_served_as_one_block(api: Api, topic_name: str) -> None:
    """The cost of a scan does not depend on how the records were written."""
    for n in range(40):
        api.write(topic_name, {"data": n, "tag": f"t{n}"})
    _, found = fetch(api, topic_name)
    assert [block.n for block in found] == [40]
    assert live(found) == {n + 1: n for n in range(40)}


def test_ranges_are_bounded_by_seq_and_by_size(api: Api, topic_name: str) -> None:
    """`to_seq` ends the range; `bytes` and `limit` end an answer, which says where to go on."""
    for _ in range(4):
        api.fill(topic_name, 300)
    header, found = fetch(api, topic_name, "?from_seq=300&to_seq=900")
    assert header["next_from_seq"] == 900
    assert min(live(found)) == 301
    seen: list[int] = []
    cursor, answers = 0, 0
    while True:
        header, found = fetch(api, topic_name, f"?from_seq={cursor}&limit=1")
        seen += [seq for seq in live(found) if cursor < seq <= header["next_from_seq"]]
        cursor, answers = header["next_from_seq"], answers + 1
        if header["caught_up"]:
            break
    assert seen == list(range(1, 1201))
    assert answers == 4


def test_deleted_records_are_flagged_and_their_text_is_blank(api: Api, topic_name: str) -> None:
    """SCAN-2: deletion is permanent, therefore the bytes do not leave the server either."""
    api.write(topic_name, {"data": "keep"}, {"data": "SECRET", "tag": "gone", "meta": {"k": "SECRET"}}, {"data": "too"})
    assert api.erase(topic_name, match="gone").ok()["deleted"] == 1
    reply = api.get(f"/v0/topics/{topic_name}/blocks")
    assert b"SECRET" not in reply.body
    _, (block,) = fetch(api, topic_name)
    assert block.flags is not None
    assert block.flags[1] == DELETED
    assert live([block]) == {1: "keep", 3: "too"}


def test_evicted_records_inside_a_block_are_gone_and_reported(api: Api, topic_name: str) -> None:
    """SCAN-2, SCAN-3: a cursor below the evict floor gets a tombstone; what it names is not in the Block any more."""
    api.put(topic_name, cap_records=3)
    api.write(topic_name, *({"data": f"EVICTED-{n}" if n < 7 else n} for n in range(10)))
    reply = api.get(f"/v0/topics/{topic_name}/blocks")
    assert b"EVICTED" not in reply.body
    header, found = fetch(api, topic_name)
    assert live(found) == {8: 7, 9: 8, 10: 9}
    assert header["tombstone"] == {"gap_from": 1, "gap_to": 7, "reason": "cap", "missed_estimate": 7}
    assert (header["earliest_seq"], header["evict_floor"]) == (8, 8)
    assert fetch(api, topic_name, "?from_seq=7")[0]["tombstone"] is None


def test_deleted_prefix_is_silent(api: Api, topic_name: str) -> None:
    """SCAN-3: a deleted gap is no loss."""
    api.fill(topic_name, 5)
    api.erase(topic_name, before_seq=4)
    header, found = fetch(api, topic_name)
    assert header["tombstone"] is None
    assert live(found) == {4: 4, 5: 5}


def test_a_block_without_live_records_is_not_sent(api: Api, topic_name: str) -> None:
    api.fill(topic_name, 300)
    api.fill(topic_name, 300, tag="gone")
    api.fill(topic_name, 300)
    api.erase(topic_name, match="gone")
    header, found = fetch(api, topic_name)
    assert [block.first_seq for block in found] == [1, 601]
    assert header["next_from_seq"] == 900


def test_plan_says_epoch_floors_and_gaps(api: Api, topic_name: str) -> None:
    """What a scan has to know before it starts."""
    api.put(topic_name, cap_records=2)
    api.fill(topic_name, 6)
    said = plan(api, topic_name, "?from_seq=1&to_seq=6")
    assert (said["head_seq"], said["earliest_seq"], said["evict_floor"], said["count"]) == (6, 5, 5, 2)
    assert said["gaps"] == [{"gap_from": 2, "gap_to": 4, "reason": "cap", "missed_estimate": 3}]
    assert plan(api, topic_name, "?from_seq=1&to_seq=3")["gaps"][0]["gap_to"] == 3
    assert plan(api, topic_name, "?from_seq=4&to_seq=6")["gaps"] == []
    assert plan(api, topic_name, "?from_seq=9&to_seq=9")["gaps"][0]["reason"] == "recreated"


def test_plan_says_what_clients_deleted(api: Api, topic_name: str) -> None:
    """SCAN-6: runs of deleted seqs, neither what was evicted nor what is live; a long list comes in pieces."""
    api.put(topic_name, cap_records=8)
    for n in range(1, 13):
        api.write(topic_name, {"data": n, "tag": "odd" if n % 2 else "even"})
    said = plan(api, topic_name, "?deleted=true")
    assert (said["deleted"], said["deleted_to_seq"]) == ([], 12)
    api.erase(topic_name, match="odd")
    assert plan(api, topic_name, "?deleted=true")["deleted"] == [[5, 5], [7, 7], [9, 9], [11, 11]]
    assert plan(api, topic_name, "?deleted=true&from_seq=5&to_seq=10")["deleted"] == [[7, 7], [9, 9]]
    api.erase(topic_name, before_seq=9)
    assert plan(api, topic_name, "?deleted=true")["deleted"] == [[5, 9], [11, 11]]
    assert "deleted" not in plan(api, topic_name)
    api.put(topic_name, cap_records=10_000)
    api.write(topic_name, *({"data": n, "tag": "odd" if n % 2 else "even"} for n in range(13, 3000)))
    api.erase(topic_name, match="odd")
    first = plan(api, topic_name, "?deleted=true")
    assert len(first["deleted"]) == 1000
    rest = plan(api, topic_name, f"?deleted=true&from_seq={first['deleted_to_seq']}")
    assert rest["deleted_to_seq"] == 2999
    assert [run for said in (first, rest) for run in said["deleted"]] == [
        [5, 9],
        *([seq, seq] for seq in range(11, 3000, 2)),
    ]


def test_a_recreated_topic_has_another_epoch(api: Api, topic_name: str) -> None:
    """SCAN-3."""
    api.fill(topic_name, 1)
    first = plan(api, topic_name)["epoch"]
    api.remove(topic_name).ok()
    api.fill(topic_name, 1)
    assert plan(api, topic_name)["epoch"] > first
    assert fetch(api, topic_name)[0]["epoch"] == plan(api, topic_name)["epoch"]


def test_plan_turns_times_into_cursors(api: Api, topic_name: str) -> None:
    api.fill(topic_name, 3)
    ts = api.read(topic_name)["records"][0]["$ts"]
    said = plan(api, topic_name, f"?from_ts={ts}&to_ts={ts}")
    assert (said["from_ts_seq"], said["to_ts_seq"]) == (0, 0)
    later = plan(api, topic_name, f"?from_ts={ts + 1}&to_ts={ts + 1}")
    assert (later["from_ts_seq"], later["to_ts_seq"]) == (3, 3)


def test_a_scan_does_not_count_as_a_read(api: Api, topic_name: str) -> None:
    """PRIORITY-2: recency is about consumers; an archive must not look like one."""
    api.fill(topic_name, 3)
    fetch(api, topic_name)
    plan(api, topic_name)
    assert api.state(topic_name)["last_read_ts"] is None


@pytest.mark.parametrize("route", ["blocks", "plan"])
def test_scan_routes_need_read_scope_and_an_existing_topic(route: str, start_api: StartApi) -> None:
    """AUTH-11."""
    api = start_api(api_keys="reader-0123456789abcdef:read,writer-0123456789abcdef:write")
    reader, writer = api.with_key("reader-0123456789abcdef"), api.with_key("writer-0123456789abcdef")
    writer.fill("there", 1)
    assert reader.get(f"/v0/topics/there/{route}").status == 200
    writer.get(f"/v0/topics/there/{route}").refused(403, "forbidden")
    api.get(f"/v0/topics/there/{route}").refused(401, "unauthorized")
    reader.get(f"/v0/topics/missing/{route}").refused(404, "topic_not_found")


@pytest.mark.parametrize("query", ["from_seq=x", "from_seq=-1", "limit=0", "bytes=0", "from_seq=5&to_seq=4"])
def test_a_bad_range_is_refused_by_name(api: Api, topic_name: str, query: str) -> None:
    api.fill(topic_name, 1)
    field = query.split("&")[-1].split("=")[0]
    api.get(f"/v0/topics/{topic_name}/blocks?{query}").refused_naming(field)


@pytest.mark.parametrize("query", ["from_seq=x", "to_seq=-1", "from_ts=x", "to_ts=-1", "segments=maybe"])
def test_a_bad_question_about_a_plan_is_refused_by_name(api: Api, topic_name: str, query: str) -> None:
    """SCAN-4: whatever else is asked for."""
    api.fill(topic_name, 1)
    api.get(f"/v0/topics/{topic_name}/plan?{query}").refused_naming(query.partition("=")[0])


def test_large_write_is_served_in_parts(api: Api, topic_name: str) -> None:
    """SCAN-1, FAIR-7: an answer has about the bytes that were asked for, whatever a write had."""
    text = "x" * 64_000
    records = [{"data": [n, text], "tag": "gone" if n in (30, 31) else "kept"} for n in range(1, 101)]
    api.post(topic_name, {"records": records}).ok()
    api.erase(topic_name, match=["tag", "Eq", "gone"]).ok(200)
    cursor, answers, found = 0, 0, {}
    while cursor < 100:
        header, some = fetch(api, topic_name, f"?from_seq={cursor}&bytes=2000000")
        assert sum(len(block.raw) for block in some) < 3_200_000
        assert some[0].first_seq == cursor + 1
        found |= live(some)
        assert header["next_from_seq"] > cursor
        cursor = header["next_from_seq"]
        answers += 1
    assert answers >= 3
    assert found == {n: [n, text] for n in range(1, 101) if n not in (30, 31)}
    header, some = fetch(api, topic_name, "?from_seq=50&to_seq=52&bytes=8000000")
    assert header["next_from_seq"] == 52
    assert sum(len(block.raw) for block in some) < 1_200_000
