"""`archive --typed` and `--compact`: columns out of the JSON, and few files instead of many."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from tests.harness.spark import Archives

pytestmark = pytest.mark.spark


def rows(root: Path, table: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(str(root / table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: int(row["seq"]))


def test_typed_tables_have_columns_out_of_the_json_and_the_rest_is_in_errors(
    archives: Archives, api: Api, topic_name: str
) -> None:
    """PIPELINE-2: columns inferred per topic, schema evolved in a commit of its own, misfits in a table `errors`."""
    from deltalake import DeltaTable

    orders, clicks = f"{topic_name}:orders", f"{topic_name}.clicks"
    api.write(orders, {"data": {"id": 1, "ts": "noon", "to": {"city": "Ulm"}}, "tag": "t"}, {"data": {"id": 2}})
    api.write(clicks, {"data": {"page": "/"}}, {"data": [1]})
    archives.run(typed=True)
    typed = f"typed/{topic_name}+orders"
    assert [(row["seq"], row["tag"], row["id"], row["data_ts"], row["to"]) for row in rows(archives.root, typed)] == [
        (1, "t", 1, "noon", {"city": "Ulm"}),
        (2, None, 2, None, None),
    ]
    assert [row["page"] for row in rows(archives.root, f"typed/{clicks}")] == ["/"]
    api.write(orders, {"data": {"id": "three", "odd": 1}}, {"data": {"id": 4, "to": {"zip": "89"}, "price": 2.5}})
    archive = archives.run(typed=True)
    assert archive.progress.errors == 1
    last = rows(archives.root, typed)[-1]
    assert (last["seq"], last["id"], last["to"], last["price"]) == (4, 4, {"city": None, "zip": "89"}, 2.5)
    assert [row["seq"] for row in rows(archives.root, typed)] == [1, 2, 4]
    assert [(row["topic"], row["seq"], row["reason"], row["data"]) for row in rows(archives.root, "errors")] == [
        (clicks, 2, "data is not an object but [1]", "[1]"),
        (orders, 3, 'data.id is bigint, and the value is "three"', '{"id": "three", "odd": 1}'),
    ]
    assert "odd" not in last, "a record that is not in the table adds no column to it"
    operations = [entry["operation"] for entry in DeltaTable(str(archives.root / typed)).history()]
    assert operations == ["WRITE", "ADD COLUMN", "WRITE", "CREATE TABLE"]
    assert len(archives.events()) == 6, "the events hold all records as they came"


def test_a_column_of_whole_numbers_that_meets_a_fraction_becomes_double(
    archives: Archives, api: Api, topic_name: str
) -> None:
    """PIPELINE-2: unless a number would change by that."""
    from deltalake import DeltaTable

    api.write(topic_name, {"data": {"n": 1, "big": 1 << 60, "o": {"i": 1}}}, {"data": {"n": -7}})
    archives.run(typed=True)
    api.write(topic_name, {"data": {"n": 2.5}}, {"data": {"big": 0.5}}, {"data": {"n": 3, "o": {"i": 0.5}}})
    assert archives.run(typed=True).progress.errors == 2
    archives.run(typed=True)
    table = f"typed/{topic_name}"
    assert [(row["seq"], row["n"], row["big"]) for row in rows(archives.root, table)] == [
        (1, 1.0, 1 << 60),
        (2, -7.0, None),
        (3, 2.5, None),
    ]
    assert [row["seq"] for row in rows(archives.root, "errors")] == [4, 5]
    kinds = {field.name: str(field.type) for field in DeltaTable(str(archives.root / table)).schema().fields}
    assert "double" in kinds["n"]
    assert "long" in kinds["big"]


def test_typed_tables_catch_up_and_hold_every_record_once(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that becomes typed later, by executors; one that was not for a while; a crash between two commits."""
    from topics.pipeline.lake import typed

    one, two = f"{topic_name}.one", f"{topic_name}.two"
    for topic in (one, two):
        api.write(topic, {"data": {"n": 1}}, {"data": 0})
    archives.run()
    with monkeypatch.context() as patch:
        patch.setattr(typed, "HERE_BYTES_MAX", 0)
        archives.run(typed=True)
    for topic in (one, two):
        api.write(topic, {"data": {"n": 3}})
    archives.run()
    for topic in (one, two):
        api.write(topic, {"data": {"n": 4}}, {"data": 0})

    commit, commits = typed._commit, []

    def crash(table: Any, *arguments: Any) -> None:
        commits.append(table)
        # In the catch-up: errors, one, two. In the batch: errors, one, and then no more.
        if len(commits) == 6:
            raise RuntimeError("crashed between two typed tables")
        commit(table, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(typed, "_commit", crash)
        with pytest.raises(Exception, match="between two typed tables"):
            archives.run(typed=True)
    assert [row["n"] for row in rows(archives.root, f"typed/{two}")] == [1, 3]
    archives.run(typed=True)
    for topic in (one, two):
        assert [(row["seq"], row["n"]) for row in rows(archives.root, f"typed/{topic}")] == [(1, 1), (3, 3), (4, 4)]
    errors = [(row["topic"], row["seq"]) for row in rows(archives.root, "errors")]
    assert sorted(errors) == [(one, 2), (one, 5), (two, 2), (two, 5)]


def test_compacting_merges_files_and_changes_nothing_else(
    archives: Archives, api: Api, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPELINE-4: a commit that changes no data, safe beside a running archive, and typed tables do not see it."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    from topics.pipeline.lake import compact as compacting
    from topics.pipeline.lake.compact import compact
    from topics.pipeline.replay import Replay

    topic = f"{topic_name}:a"
    for n in range(6):
        api.write(topic, {"data": {"n": n}})
    archives.run(offsets_max=1, typed=True)
    before, events = archives.events(), str(archives.root / "events")
    assert len(DeltaTable(events).file_uris()) == 6
    api.write(topic, {"data": {"n": 6}})
    monkeypatch.setattr(compacting, "ROW_GROUP_ROWS", 2)
    beside = threading.Thread(
        target=lambda: merged.update({one.table: one for one in compact(archives.place, 1 << 20)})
    )
    merged: dict[str, Any] = {}
    beside.start()
    archives.run(typed=True)
    beside.join(60)
    assert set(merged) == {"errors", "events", "losses", f"typed/{topic_name}+a"}
    assert merged["events"].removed >= 6
    assert merged["events"].added == 1
    assert len(DeltaTable(events).file_uris()) <= 2
    groups = {pq.ParquetFile(path).num_row_groups for path in DeltaTable(events).file_uris()}
    assert max(groups) >= 3, "a scan is divided by row groups"
    assert archives.events()[:6] == before
    assert [row["n"] for row in rows(archives.root, f"typed/{topic_name}+a")] == list(range(7))
    merge = next(entry for entry in DeltaTable(events).history() if entry["operation"] == "OPTIMIZE")
    log = (Path(events) / "_delta_log" / f"{merge['version']:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in log]
    assert all(
        not (action.get("add") or action["remove"])["dataChange"] for action in actions if "commitInfo" not in action
    )
    replayed = Replay(
        {"url": archives.source["url"]}, archives.place, f"{topic_name}-r", "r", archives.root / "s", [topic]
    )
    list(replayed.run(archives.spark))
    assert [record["data"]["n"] for record in api.read(f"{topic_name}-r")["records"]] == list(range(7))
