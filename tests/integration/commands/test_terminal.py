"""What a person at a terminal sees and answers, and what a shell completes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.api import Api
from tests.harness.commands import Shell
from topics.testing import ServerProcess


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return {**kept, "TOPICS_URL": url, "TERM": "xterm", "COLUMNS": "160", **more}


class Terminal:
    """A command on a terminal, but for what is redirected."""

    def __init__(self, url: str, *arguments: str, **redirected: int) -> None:
        self._ours, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **redirected}
        command = [sys.executable, "-m", "topics", *arguments]
        self._process = subprocess.Popen(command, env=environment(url), **streams)  # type: ignore[call-overload]
        os.close(theirs)
        self.seen = b""

    def see(self, text: bytes) -> None:
        """Read until a text is there."""
        while text not in self.seen:
            chunk = b""
            with suppress(OSError):
                chunk = os.read(self._ours, 65_536)
            assert chunk, f"the command ended without {text!r}: {self.seen!r}"
            self.seen += chunk

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> int:
        """Read the rest; the exit code."""
        with suppress(OSError):
            while chunk := os.read(self._ours, 65_536):
                self.seen += chunk
        os.close(self._ours)
        return self._process.wait(timeout=60)


def test_a_person_is_asked_before_what_cannot_be_undone(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-14."""
    api.fill(topic_name, 3)
    for answer, code, left in ((b"n\n", 1, True), (b"y\n", 0, False)):
        terminal = Terminal(server.url, "rm", topic_name)
        terminal.see(f"Delete {topic_name} with 3 records and its routers for good? [y/N]:".encode())
        terminal.type(answer)
        assert terminal.end() == code, terminal.seen
        assert api.exists(topic_name) is left


def test_long_reads_and_writes_show_how_far_they_have_got(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """CLI-20: on the terminal, and not in the output."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(5_000)))
    with lines.open("rb") as given:
        terminal = Terminal(server.url, "publish", topic_name, stdin=given.fileno())
        assert terminal.end() == 0
    assert f"publishing to {topic_name}".encode() in terminal.seen
    assert b"100%" in terminal.seen
    assert b"published 5,000 records to the new topic" in terminal.seen

    copy = tmp_path / "copy"
    with copy.open("wb") as taken:
        terminal = Terminal(server.url, "read", topic_name, "--data", stdout=taken.fileno())
        assert terminal.end() == 0
    assert b"reading" in terminal.seen
    assert copy.read_bytes() == lines.read_bytes()


def test_watch_fills_the_screen(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-18."""
    api.fill(topic_name, 3)
    terminal = Terminal(server.url, "watch", topic_name, "-i", "50ms", "-c", "2")
    assert terminal.end() == 0
    assert f"{server.url}  1 topic  ".encode() in terminal.seen
    assert topic_name.encode() in terminal.seen


def test_tail_follows_several_topics(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-7."""
    one, two = f"{topic_name}.1", f"{topic_name}.2"
    api.write(one, {"data": "old"})
    api.put(two)
    command = [sys.executable, "-m", "topics", "tail", f"{topic_name}.*", "--tag", "t*", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(server.url)) as tail:
        try:
            assert tail.stdout is not None
            for number in range(3):
                api.write(two, {"data": "not this one"}, {"data": number, "tag": "t1"})
                assert f'"topic":"{two}","$seq":{2 * number + 2},'.encode() in tail.stdout.readline()
            api.write(one, {"data": "last", "tag": "t2"})
            assert b'"data":"last"' in tail.stdout.readline()
        finally:
            tail.kill()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_for_each_shell(shell: str) -> None:
    """CLI-20."""
    script = Shell("http://127.0.0.1:1").out("completion", shell)
    assert f"_TOPICS_COMPLETE=complete_{shell}" in script


def test_commands_options_and_topics_are_completed(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-20: the names of topics come from the server, and a server that is down is no error."""
    api.put(f"{topic_name}-orders")

    def completed(words: str, url: str = server.url) -> list[str]:
        variables = {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "topics"]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment(url, **variables), check=True
        )
        assert ran.stderr == ""
        return ran.stdout.split()

    assert completed("topics t") == ["tail"]
    assert completed("topics queue redrive --dr") == ["--dry-run"]
    assert completed(f"topics tail {topic_name}") == [f"{topic_name}-orders"]
    assert completed("topics tail x", "http://127.0.0.1:1") == []
