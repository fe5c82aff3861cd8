"""The packages: what is built is whole, installs without a network and serves; what is in deploy/ is true."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.harness.api import DEADLINE_S, until
from topics import __version__

ROOT = Path(__file__).resolve().parents[2]
NAME = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
STEM = f"{NAME.replace('-', '_')}-{__version__}"
WHEELS = ROOT / ".venv" / "wheels"
UNIT = ROOT / "deploy" / "topics.service"


def environ(**more: str) -> dict[str, str]:
    """What a program of its own sees: nothing of this project, and no index to ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PIP_", "PYTHON"))}
    return {**kept, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **more}


def build(source: Path, to: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    subprocess.run(command, cwd=source, env=environ(), check=True, capture_output=True, timeout=60)
    (built,) = to.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def serves(command: Path, place: Path) -> None:
    """The command starts a server that takes a record and shows its console, and ends it cleanly on SIGTERM."""
    settings = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(place / "port"), "TOPICS_DATA_DIR": str(place / "data")}
    with (place / "log").open("wb") as log:
        server = subprocess.Popen([command, "serve"], env=environ(**settings), stdout=log, stderr=log, cwd=place)
    try:

        def has_started() -> bool:
            assert server.poll() is None, (place / "log").read_text()
            return (place / "port").exists() and bool((place / "port").read_text().strip())

        until(has_started, "the server listens")
        url = f"http://127.0.0.1:{(place / 'port').read_text().strip().rpartition(':')[2]}"
        client = environ(TOPICS_URL=url)
        run = {"check": True, "capture_output": True, "text": True, "timeout": 60, "env": client, "cwd": place}
        subprocess.run([command, "publish", "orders"], input='{"item": "tea"}\n', **run)
        assert "tea" in subprocess.run([command, "tail", "orders", "-F"], **run).stdout
        code = f"import urllib.request as web; print(web.urlopen('{url}/console/main.js').status)"
        assert subprocess.run([command.with_name("python"), "-c", code], **run).stdout == "200\n"
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(DEADLINE_S)
    assert code == 0, (place / "log").read_text()


def test_the_name_is_not_that_of_another_project(wheel: Path) -> None:
    """DEPLOY-1: `topics` belongs to something else in the index; the import and the command are `topics`."""
    assert NAME != "topics"
    assert wheel.name == f"{STEM}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as found:
        names = found.namelist()
        scripts = found.read(f"{STEM}.dist-info/entry_points.txt").decode()
    assert {name.partition("/")[0] for name in names} == {"topics", "pyspark_topics", f"{STEM}.dist-info"}
    assert "topics = topics.__main__:main" in scripts


def test_the_source_package_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """DEPLOY-1: and has the tests, the documents and the files in deploy/ in it."""
    packed = build(ROOT, tmp_path / "sdist", "sdist")
    subprocess.run(["tar", "-xf", packed, "-C", tmp_path], check=True, timeout=60)
    unpacked = tmp_path / STEM
    for name in ("deploy/Dockerfile", "docs/api.md", "tests/conftest.py", "tools/lock", "requirements/server.txt"):
        assert (unpacked / name).is_file()
    with zipfile.ZipFile(wheel) as here, zipfile.ZipFile(build(unpacked, tmp_path / "again", "wheel")) as there:
        assert {(each.filename, each.CRC) for each in there.infolist()} == {
            (each.filename, each.CRC) for each in here.infolist()
        }


def test_the_wheel_installs_alone_and_serves(wheel: Path, tmp_path: Path) -> None:
    """DEPLOY-1: with the dependencies of this environment, and without this checkout."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", wheel], env=environ(), check=True, timeout=60)
    (packages,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files there are not read: the editable install is out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = [home / "bin" / "python", "-c", "import topics; print(topics.__file__)"]
    shown = subprocess.run(where, env=environ(), cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert Path(shown.stdout.strip()).is_relative_to(home)
    serves(home / "bin" / "topics", tmp_path)


@pytest.mark.skipif(not (WHEELS / ".ready").exists(), reason="no wheels of the lock (tools/ensure-wheels)")
def test_the_install_script_needs_no_network(tmp_path: Path) -> None:
    """DEPLOY-2: from the lock and its wheels alone; what builds the package is not installed."""
    home = tmp_path / "opt" / "topics"
    command = [ROOT / "deploy" / "install.sh", home]
    here = environ(PIP_FIND_LINKS=str(WHEELS), PIP_NO_COMPILE="1", PYTHON=sys.executable)
    ran = subprocess.run(command, env=here, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"topics {__version__}\n"
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "server.txt").read_text(), re.MULTILINE))
    there = {path.name.partition("-")[0].replace("_", "-").lower() for path in home.glob("lib/python*/*/*.dist-info")}
    assert there - {"pip", "setuptools"} <= locked | {NAME}
    assert {NAME, "uvloop", "msgspec"} <= there
    serves(home / "bin" / "topics", tmp_path)


def test_the_install_script_says_how_to_use_it() -> None:
    """DEPLOY-2."""
    for arguments in ([], ["--help"], ["-x"]):
        ran = subprocess.run([ROOT / "deploy" / "install.sh", *arguments], capture_output=True, text=True, check=False)
        assert (ran.returncode, "deploy/install.sh PREFIX" in ran.stderr) == (2, True)


def test_the_image_is_what_the_install_script_makes() -> None:
    """DEPLOY-3: one step, a user without rights, a volume, a health check and no shell around process 1."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    said = [(name, " ".join(rest.split())) for name, rest in lines]
    assert [rest for name, rest in said if name == "RUN"] == [
        "--mount=type=bind,target=/src /src/deploy/install.sh --system"
    ]
    once = dict(said)
    assert (once["USER"], once["VOLUME"], once["STOPSIGNAL"]) == ("topics", "/var/lib/topics", "SIGTERM")
    assert once["ENTRYPOINT"].startswith("[")
    assert "/v0/ready" in once["HEALTHCHECK"]
    assert not re.search(r"KEY|TOKEN|SECRET", once["ENV"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_closed_and_says_nothing_that_systemd_does_not_know(tmp_path: Path) -> None:
    """DEPLOY-5: and the exposure that docs/operations.md quotes is not higher."""
    home = tmp_path / "topics"
    home.write_text("#!/bin/sh\n")
    home.chmod(0o755)
    unit = tmp_path / "topics.service"
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/topics/bin/topics", str(home)))
    run = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    # What else it finds is about other units of this machine.
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], **run)
    assert [line for line in checked.stderr.splitlines() if "topics" in line] == []
    found = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit], **run)
    level = re.search(r"Overall exposure level for topics\.service: ([\d.]+)", found.stdout)
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    quoted = re.search(r"Overall exposure level for topics\.service: ([\d.]+)", page)
    assert level is not None
    assert quoted is not None
    # Another version of systemd may look at more.
    assert float(level[1]) <= float(quoted[1]) + 0.5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_timer_runs_the_backup_of_the_page(tmp_path: Path) -> None:
    """DEPLOY-5: systemd knows every line, and the command exists with these options."""
    command = tmp_path / "topics"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for name in ("topics-backup.service", "topics-backup.timer"):
        text = (UNIT.parent / name).read_text(encoding="utf-8").replace("/opt/topics/bin/topics", str(command))
        (tmp_path / name).write_text(text)
    units = [tmp_path / "topics-backup.service", tmp_path / "topics-backup.timer"]
    run = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], **run)
    assert [line for line in checked.stderr.splitlines() if "topics" in line] == []
    found = re.search(r"^ExecStart=\S+ (.+)$", units[0].read_text(), re.MULTILINE)
    assert found is not None
    given = found[1].split()
    known = subprocess.run([sys.executable, "-m", "topics", given[0], "--help"], **run).stdout
    assert {each for each in given if each.startswith("--")} <= set(re.findall(r"--[\w-]+", known))


def test_the_unit_leaves_the_server_what_it_needs() -> None:
    """DEPLOY-5: the boot id tells a restart from a loss of power, and a stop has time for a checkpoint."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE))
    assert "ProcSubset" not in unit
    assert int(unit["TimeoutStopSec"]) > 10
    assert unit["RestartPreventExitStatus"] == "2 3"
    # DEPLOY-6: the log is replayed before the unit counts as started, however long that takes.
    assert (unit["Type"], unit["TimeoutStartSec"]) == ("notify", "infinity")
    assert "SIG" not in unit.get("KillSignal", "")
