"""The tools for a data directory: `topics verify` and `topics dump`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from topics.cli import app
from topics.testing import ServerProcess


def test_verify_and_dump_speak_of_a_data_directory(tmp_path: Path) -> None:
    """CLI-10: `topics verify DIR` has an exit code and a readable report, `topics dump DIR` prints JSON lines."""
    directory = tmp_path / "data"
    with ServerProcess(data_dir=directory) as server:
        server.request("POST", "/v0/topics/t", json={"records": [{"data": {"a": 1}, "tag": "x"}]})
    clean = CliRunner().invoke(app, ["verify", str(directory)])
    assert clean.exit_code == 0, clean.output
    dumped = CliRunner().invoke(app, ["dump", str(directory)])
    assert dumped.exit_code == 0
    lines = [json.loads(line) for line in dumped.output.splitlines()]
    assert any(record["tag"] == "x" for line in lines for record in line.get("records", ()))
    file = max((directory / "snapshots").iterdir(), key=lambda path: path.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    file.write_bytes(damaged)
    report = CliRunner().invoke(app, ["verify", str(directory)])
    assert report.exit_code == 1
    assert "DAMAGE" in report.output
    assert file.name in report.output
    assert CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code == 2


def test_tools_say_that_a_server_is_writing_to_the_directory(tmp_path: Path) -> None:
    """CLI-10: what is being written may look torn, and must not be taken for damage."""
    directory = tmp_path / "data"
    with ServerProcess(data_dir=directory) as server:
        server.request("POST", "/v0/topics/t", json={"records": [{"data": 1}]})
        for tool in ("verify", "dump"):
            warned = CliRunner().invoke(app, [tool, str(directory)])
            assert warned.exit_code == 0, warned.output
            (line,) = warned.stderr.splitlines()
            assert line.startswith(f"topics: process {server.pid} on ")
            assert f"serves {directory}: what it is writing now may look torn" in line
            assert "stop it, or look at a copy" in line
            assert "serves" not in warned.stdout
        server.kill()
        # The file still names the process; the lock has gone with the process.
        assert (directory / "LOCK").read_text()
        for tool in ("verify", "dump"):
            assert CliRunner().invoke(app, [tool, str(directory)]).stderr == ""


def test_dump_of_nothing_says_so(tmp_path: Path) -> None:
    """CLI-10: exit code 2, and the reason."""
    result = CliRunner().invoke(app, ["dump", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "is not a data directory" in result.stderr
    assert result.stdout == ""


def test_what_cannot_be_read_is_reported_in_one_line(tmp_path: Path) -> None:
    """CLI-10: exit code 2, no traceback."""
    (tmp_path / "file").touch()
    (tmp_path / "LAYOUT").mkdir()
    for arguments in (["dump", str(tmp_path / "file")], ["verify", str(tmp_path)]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("topics: cannot read ")
        assert len(result.stderr.splitlines()) == 1
