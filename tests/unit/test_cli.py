"""The command `topics`: flags, warnings and refusals (the CLI rules)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

from topics import __main__ as command
from topics import __version__, settings
from topics.cli import _Commands, app
from topics.server.auth import Keys
from topics.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, Keys]]:
    """What the server was started with, in place of a server."""
    started: list[tuple[Settings, Keys]] = []

    class Server:
        def __init__(self, chosen: Settings, keys: Keys) -> None:
            started.append((chosen, keys))

        def run(self) -> int:
            return 0

    stand_in = types.ModuleType("topics.server.server")
    stand_in.Server = Server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "topics.server.server", stand_in)
    for name in list(os.environ):
        if name.startswith("TOPICS_"):
            monkeypatch.delenv(name)
    return started


def test_serve_takes_settings_from_the_environment_and_flags_over_them(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_PORT", "1")
    monkeypatch.setenv("TOPICS_MAX_TOPICS", "5")
    monkeypatch.setenv("TOPICS_PROBE_AUTH", "true")

    result = CliRunner().invoke(app, ["serve", "--port", "2", "--allow-insecure-no-auth", "--no-probe-auth"])

    assert result.exit_code == 0, result.output
    chosen, _ = served[0]
    assert (chosen.port, chosen.max_topics) == (2, 5)
    assert (chosen.allow_insecure_no_auth, chosen.probe_auth) == (True, False)


def test_every_setting_has_a_flag_and_keys_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTH-7, CLI-1: keys have no command-line flag. Names are whole on a terminal of the usual width."""
    monkeypatch.setenv("COLUMNS", "80")

    shown = CliRunner().invoke(app, ["serve", "--help"]).output

    for setting in settings.table():
        assert settings.flag(setting) in shown
        assert settings.variable(setting) in shown
    assert "--api-key" not in shown.replace("--api-keys-file", "")


@pytest.mark.parametrize(
    "command", [(), ("serve",), ("tail",), ("queue",), ("queue", "claim"), ("pipeline",), ("pipeline", "archive")]
)
def test_h_is_help_everywhere(command: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*command, flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert "Usage:" in short.output


@pytest.mark.parametrize("group", [(), ("pipeline",), ("queue",), ("router",), ("consumer",)])
def test_the_list_of_commands_is_not_cut(group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = CliRunner().invoke(app, [*group, "--help"]).output.partition("Options:")[2]
    assert "  ls " in listed or "  claim " in listed or "  archive " in listed
    assert "..." not in listed


def test_the_help_fits_a_screen_and_loads_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-11: 40 lines of 80 characters, in sections."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 80
    assert {"Topics:", "Records:", "Server:"} <= set(lines)


def test_every_command_of_the_list_can_be_loaded_and_has_help() -> None:
    """CLI-11."""
    for section in _Commands.sections:
        for entry in section.entries:
            shown = CliRunner().invoke(app, [entry.name, "--help"])
            assert shown.exit_code == 0, shown.output
            assert shown.output.startswith(f"Usage: root {entry.name}"), shown.output


def test_the_version_and_the_list_load_neither_library_nor_server() -> None:
    """CLI-11."""
    code = """
import sys
from topics.__main__ import main
sys.argv = ["topics", {argument!r}]
try:
    main()
except SystemExit:
    pass
print([name for name in sys.modules if name.startswith({names!r})])
"""
    for argument, names in (
        ("--version", ("typer", "rich", "topics.c", "topics.s", "asyncio")),
        ("--help", ("rich", "topics.client", "topics.server", "topics.pipeline", "topics.settings", "asyncio")),
    ):
        script = code.format(argument=argument, names=names)
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        assert ran.stdout.endswith("\n[]\n"), ran.stdout


def test_a_misspelt_command_comes_with_the_right_one() -> None:
    """CLI-11."""
    shown = CliRunner().invoke(app, ["tial"])
    assert shown.exit_code == 2
    assert "Did you mean 'tail'?" in shown.stderr


def test_keys_reach_the_server_and_leave_the_environment(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUTH-4."""
    monkeypatch.setenv("TOPICS_API_KEYS", "hush:read")

    result = CliRunner().invoke(app, ["serve"])

    assert result.exit_code == 0
    assert len(served[0][1]) == 1
    assert "TOPICS_API_KEYS" not in os.environ
    assert "hush" not in result.output


def test_an_unknown_variable_is_warned_about_and_the_server_starts(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_MAX_TOPIC", "5")

    result = CliRunner().invoke(app, ["serve"])

    assert result.exit_code == 0
    assert len(served) == 1
    assert "topics: warning: TOPICS_MAX_TOPIC is not a setting" in result.stderr
    assert "did you mean TOPICS_MAX_TOPICS?" in result.stderr


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TOPICS_PORT": "x"}, "TOPICS_PORT is 'x'"),
        ({"TOPICS_API_KEYS": "hush:reed"}, "TOPICS_API_KEYS: entry 1 is malformed"),
        ({"TOPICS_HOST": "0.0.0.0"}, "there are no keys"),
    ],
)
def test_the_server_refuses_to_start_with_one_clear_line(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    """AUTH-16: fail-closed on a malformed key and on a public bind without keys."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    result = CliRunner().invoke(app, ["serve"])

    assert result.exit_code == 2
    assert served == []
    assert expected in result.stderr
    assert "Traceback" not in result.output
    assert "hush" not in result.output
    assert "TOPICS_API_KEYS" not in os.environ


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"topics {__version__}\n"


def test_the_command_alone_serves_by_the_environment(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["topics", "serve"])
    monkeypatch.setenv("TOPICS_PORT", "1")

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 0
    assert served[0][0].port == 1
    assert gc.isenabled()


def test_every_other_command_line_is_parsed(
    served: list[tuple[Settings, Keys]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["topics", "serve", "--port", "2"])

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 0
    assert served[0][0].port == 2


def test_a_server_without_flags_does_not_load_their_parser() -> None:
    """It would take as long as the rest of a start on an empty directory."""
    code = "import sys, topics.serve, topics.server.server; print({'typer', 'rich', 'pydantic'} & sys.modules.keys())"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded == "set()\n"
