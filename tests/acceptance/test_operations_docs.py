"""docs/operations.md: what it names exists, and a backup made as it says is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from topics import errors, serve, settings
from topics.server import server as process
from topics.testing import ServerProcess

SERVICE = ("systemctl", "install")
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_variables_metrics_codes_and_exit_codes_are_real() -> None:
    known = {settings.variable(setting) for setting in settings.table()} | {settings.KEYS_VARIABLE, "TOPICS_TOKEN"}
    assert set(re.findall(r"\bTOPICS_[A-Z_]+", PAGE)) <= known
    with ServerProcess() as server:
        metrics = server.request("GET", "/v0/metrics").body.decode()
    named = set(re.findall(r"\btopics_[a-z_]+", PAGE))
    assert named
    assert {name for name in named if f"# TYPE {name}" not in metrics} == set()
    codes = {each.code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "code")}
    assert set(re.findall(r"(?:503|429) `(\w+)`", PAGE)) <= codes
    exits = {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    assert exits == {0, process.EXIT_CANNOT_LISTEN, serve.EXIT_BAD_SETTINGS, process.EXIT_CANNOT_STORE}


def commands(heading: str, places: dict[str, str]) -> list[str]:
    """The commands below a heading but for those of the service, with these paths."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = [line for line in re.findall(r"^\$ (.+)$", section, re.MULTILINE) if not line.startswith(SERVICE)]
    for shown, place in places.items():
        found = [line.replace(shown, place) for line in found]
    return [re.sub(r"^topics ", f"{sys.executable} -m topics ", line) for line in found]


def test_backup_and_restore_work_as_documented(tmp_path: Path) -> None:
    """BACKUP-1, BACKUP-7: the commands of the page, one after the other."""
    data = tmp_path / "data"
    (tmp_path / "backup").mkdir()
    run = {"shell": True, "check": True, "capture_output": True, "timeout": 60}
    with ServerProcess(data_dir=data) as server:
        places = {
            "/var/lib/topics": str(data),
            "/backup": str(tmp_path / "backup"),
            "http://127.0.0.1:4000": server.url,
        }
        server.request("PUT", "/v0/topics/jobs", json={"type": "queue", "durable": True})
        server.request("POST", "/v0/topics/jobs", json={"records": [{"data": n} for n in range(50)]})
        server.request("POST", "/v0/topics/jobs/claim", json={"node": "w", "max": 3})
        backup = commands("Backup", places)
        assert [command.split()[3] for command in backup] == ["backup", "verify", "backup", "backup"]
        for command in backup:
            subprocess.run(command, **run)
        lost = server.request("POST", "/v0/topics/jobs", json={"records": [{"data": "lost"}]}).json["first_seq"]
    for command in commands("Restore", places):
        subprocess.run(command, **run)
    for directory in (data, tmp_path / "data.tuesday"):
        with ServerProcess(data_dir=directory) as server:
            state = server.request("GET", "/v0/topics/jobs").json
            assert (state["count"], state["queue"]["in_flight"]) == (50, 3)
            assert server.request("POST", "/v0/topics/jobs", json={"records": [{"data": 1}]}).json["first_seq"] > lost
            gap = server.request("POST", "/v0/topics/jobs/diff", json={"from_seq": lost}).json["tombstone"]
            assert gap["reason"] == "restore"
