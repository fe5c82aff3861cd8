"""Every command of docs/cli.md runs as it stands, in order, against one server, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from topics.cli import app
from topics.commands.profiles import load
from topics.testing import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:4000"
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
STEPS = [step for block in BLOCKS for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]


def matches(printed: str, shown: str) -> bool:
    """Whether it is what the page shows: `…` stands for anything within a line, or for any lines if it is one."""
    lines = []
    for line in shown.splitlines():
        lines.append(r"(?:.*\n)*" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n")
    return re.fullmatch("".join(lines), printed) is not None


def run(command: str, environ: dict[str, str], directory: Path) -> str:
    """What a command prints, which must not fail. What needs no shell runs in this process, which takes no time."""
    if re.search(r"[|<>&;]", command) is None:
        name, *arguments = shlex.split(command)
        assert name == "topics", command
        ended = CliRunner().invoke(app, arguments, env=environ, prog_name="topics")
        assert ended.exit_code == 0, f"{command}\n{ended.output}"
        return ended.output
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    ran = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environ, text=True, timeout=60, check=False, **both
    )  # type: ignore[call-overload]
    assert ran.returncode == 0, f"{command}\n{ran.stdout}"
    return str(ran.stdout)


def test_the_page_says_what_the_commands_do(tmp_path: Path) -> None:
    """CLI-21."""
    assert len(STEPS) >= 35
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    with ServerProcess() as server:
        environ = kept | {
            "TOPICS_URL": server.url,
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for command, shown in STEPS:
            printed = run(command.replace(ADDRESS, server.url), environ, tmp_path).replace(server.url, ADDRESS)
            assert matches(printed, shown), f"{command}\n{printed}\nis not\n{shown}"


def test_a_line_that_differs_is_seen() -> None:
    """The ellipsis stands for what changes, and for nothing else."""
    assert matches("1  now  eu  x\n2\n3\n", "1  …  eu  x\n…\n")
    assert not matches("1  now  us  x\n", "1  …  eu  x\n")
    assert not matches("1\n2\n", "1\n")


def test_the_profiles_of_the_page_are_valid(tmp_path: Path) -> None:
    """CLI-12."""
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop.key").write_text("k\n")
    file = tmp_path / "profiles.toml"
    file.write_text(text.replace("~/.config/topics", str(tmp_path)))
    default, shop = load(file, None), load(file, "shop")
    assert default is not None
    assert (default.name, default.url) == ("local", ADDRESS)
    assert shop is not None
    assert (shop.token, shop.ca) == ("k", str(tmp_path / "ca.pem"))
