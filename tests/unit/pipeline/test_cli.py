"""`topics pipeline` on the command line: what is wrong is one line, before a JVM is started; progress counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from topics.pipeline.cli import app
from topics.pipeline.errors import reason
from topics.pipeline.progress import Progress

ARCHIVE = ("archive", "--topic", "orders", "--to", "lake")
TRANSFORM = ("transform", "--topic", "orders", "--sql", "q.sql", "--checkpoint", "c")
REPLAY = ("replay", "--name", "n", "--state", "s")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("archive", "--to", "lake"), "say what to archive: --topic (one or more) or --prefix"),
        ((*ARCHIVE, "--prefix", "o"), "say what to archive: --topic (one or more) or --prefix"),
        ((*ARCHIVE, "--format", "csv"), '--format is "csv"; it must be delta, iceberg or parquet'),
        ((*ARCHIVE, "--format", "parquet", "--typed"), "--typed needs the format delta"),
        ((*ARCHIVE, "--format", "parquet", "--compact"), "--compact needs the format delta"),
        ((*ARCHIVE, "--interval", "soon"), '--interval is "soon"; it must be a span of time'),
        ((*ARCHIVE, "--token-file", "none"), "--token-file none: No such file or directory"),
        ((*ARCHIVE, "--url", "ftp://x"), 'option "url" is "ftp://x": it must be an address'),
        (("archive", "--to", "lake", "--compact"), "there is no Delta table in lake"),
        ((*TRANSFORM[:4], "none.sql", *TRANSFORM[5:], "--to", "x"), "--sql none.sql: No such file or directory"),
        ((*TRANSFORM, "--to", "x", "--mode", "odd"), '--mode is "odd"; it must be append, update or complete'),
        ((*TRANSFORM, "--to", "a b"), '--to: "a b" is not a topic name'),
        ((*REPLAY, "--from", "lake", "--to", "x"), "--from lake: there is no archive in it"),
        (("run", "none.yml"), "none.yml: No such file or directory"),
        (("check", "bad.yml"), "bad.yml:1: flow: there is no such key; did you mean flows?"),
        (("report", "--from", "lake"), "there is no archive in lake: it has no table of events"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_line_that_names_it(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPICS_TOKEN", raising=False)
    (tmp_path / "q.sql").write_text("SELECT 1")
    (tmp_path / "bad.yml").write_text("{flow: 1, flows: {a: {kind: archive, topics: t, to: lake}}}")
    ended = CliRunner().invoke(app, arguments)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"topics pipeline: {expected}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ARCHIVE,
        (*TRANSFORM, "--to", "x"),
        (*REPLAY, "--from", "lake", "--to", "x"),
        ("report", "--from", "lake"),
        ("run", "pipelines.yml"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_missing_spark_is_reported_in_one_line(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server alone is installed by `make serve`, and the command is there all the same."""
    monkeypatch.setattr("topics.pipeline.launch.find_spec", lambda name: None if name == "pyspark" else object())
    ended = CliRunner().invoke(app, arguments)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(
        "topics pipeline: pyspark not installed: pipelines need the extra `spark` (make setup"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [(*ARCHIVE, "--max-offsets", "0"), (*ARCHIVE, "--min-partitions", "-1"), (*ARCHIVE, "--target-file-bytes", "0"),
     (*REPLAY, "--from", "lake", "--to", "x", "--rate", "0"), ("report", "--from", "lake", "--hours", "0")],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_by_its_option(arguments: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in ended.stderr


def reported(batch: int, rows: int, end: int, head: int, epoch: int = 1) -> dict[str, Any]:
    """What Spark says about a batch; offsets are text in it."""
    offsets = [json.dumps({"orders": {"epoch": one, "seq": seq}}) for one, seq in ((1, end), (epoch, head))]
    source = {"startOffset": None, "endOffset": offsets[0], "latestOffset": offsets[1]}
    return {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 10.0, "sources": [source]}


def test_progress_counts_each_batch_once_and_the_lag_that_is_left() -> None:
    progress = Progress("archive")
    assert progress.take(reported(0, 100, 100, 350))
    assert progress.line() == "archive: batch 0, 100 records, 10/s, lag 250"
    assert not progress.take(reported(0, 100, 100, 350))
    progress.files, progress.losses, progress.errors = 3, 1, 2_000
    assert progress.take(reported(1, 250, 350, 350))
    assert progress.line() == "archive: batch 1, 350 records, 10/s, lag 0, 3 files, 1 gap, 2,000 errors"
    progress.take(reported(2, 0, 350, 40, epoch=2))
    assert progress.lag == 40, "a topic that was created anew is ahead by all that it has"


def test_a_failure_is_reported_without_what_spark_wraps_around_it() -> None:
    wrapped = "[X] failed\n  File ...\ntopics.spark.errors.DataLoss: topic lost 1 to 2\n SQLSTATE: 38000\n\tat org.a.B"
    assert reason(Exception(wrapped)) == "topic lost 1 to 2"
    assert reason(Exception("plain\n\tat a.b.C(C.java)")) == "plain"
    plan = "[UNRESOLVED] no column `x`. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- Relation [url=http://a]"
    assert reason(Exception(plan)) == "[UNRESOLVED] no column `x`. SQLSTATE: 42703; line 1 pos 7"
    syntax = (
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'.\n SQLSTATE: 42601 (line 1)\n\n== SQL ==\nSELEC 1\n^^^"
    )
    assert reason(Exception(syntax)) == "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1)"


def test_check_reads_a_file_without_spark_and_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-20: a file can be checked where nothing of it could run."""
    pytest.importorskip("yaml")
    monkeypatch.setenv("TOPICS_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("A_KEY", "very-secret")
    file = tmp_path / "pipelines.yml"
    file.write_text(
        "server: {token: '${A_KEY}'}\nflows: {orders-lake: {kind: archive, topics: orders, to: s3://b/lake}}"
    )
    ended = CliRunner().invoke(app, ("check", str(file)))
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1].split() == ["archive", "orders", "http://127.0.0.1:1", "orders-lake"]
    monkeypatch.setattr("topics.pipeline.flows_cli.find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ("check", str(file)))
    assert ended.exit_code == 1
    assert ended.stderr.startswith("topics pipeline: yaml not installed: pipelines need the extra `spark`")
