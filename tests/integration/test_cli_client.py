"""The commands as processes: what goes through pipes, signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.api import Api, until
from tests.harness.commands import Shell
from topics.testing import ServerProcess


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return {**kept, "TOPICS_URL": url, "TZ": "UTC", **more}


def run(url: str, *arguments: str, given: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "topics", *arguments]
    return subprocess.run(command, input=given, capture_output=True, env=environment(url, **variables), timeout=60)


def failed(ended: subprocess.CompletedProcess[bytes], exit_code: int = 1) -> str:
    """What a command that failed says: its last line, and no traceback."""
    assert ended.returncode == exit_code, ended
    *before, line = ended.stderr.decode().splitlines()
    assert all(each.startswith(("published ", "nothing was published")) for each in before), ended.stderr
    return line


def test_lines_of_the_input_become_records_byte_for_byte(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-6: data is opaque and stays as it was written."""
    ended = run(
        server.url, "publish", topic_name, "--tag", "a", "--node", "n", given=b'{"price": 1.10}\n\n 2\r\n"last"'
    )
    assert ended.returncode == 0, ended
    assert ended.stdout == b""
    assert ended.stderr.decode() == f"published 3 records to the new topic {topic_name}: seqs 1 to 3\n"
    read = api.diff(topic_name, include_tags=True)
    assert b'"data":{"price": 1.10}' in read.body
    assert [record["data"] for record in read.ok()["records"]] == [{"price": 1.1}, 2, "last"]
    assert {(record["$tag"], record["$node"]) for record in read.ok()["records"]} == {("a", "n")}


def test_text_is_sent_as_strings_and_arguments_as_records(server: ServerProcess, api: Api, topic_name: str) -> None:
    assert run(server.url, "publish", topic_name, "--text", given='{"no": json\n\nwörld\n'.encode()).returncode == 0
    one = run(server.url, "publish", topic_name, '{"a": 1}')
    assert one.stderr.decode() == f"published 1 record to {topic_name}: seq 4\n"
    assert [record["data"] for record in api.read(topic_name)["records"]] == ['{"no": json', "", "wörld", {"a": 1}]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'1},{"data":2', "line 2 is not JSON: "),
        (b"hello", "with --text each line is sent as a string"),
        (b'"\xff"', "line 2 is not UTF-8 (byte 1)"),
        (b'"\\ud83d"', "line 2 is not JSON: "),
    ],
)
def test_line_that_is_no_json_is_named_and_cannot_break_out_of_its_record(
    server: ServerProcess, api: Api, topic_name: str, line: bytes, expected: str
) -> None:
    assert expected in failed(run(server.url, "publish", topic_name, given=b"1\n" + line + b"\n3\n"))
    assert not api.exists(topic_name)


def test_large_input_goes_in_batches_and_what_is_stored_is_reported(
    server: ServerProcess, api: Api, topic_name: str
) -> None:
    lines = b"".join(b"%d\n" % i for i in range(2_500)) + b"oops\n"
    ended = run(server.url, "publish", topic_name, given=lines)
    assert "line 2,501 is not JSON" in failed(ended)
    assert ended.stderr.decode().startswith(f"published 2,000 records to the new topic {topic_name}: seqs 1 to 2000\n")
    assert api.state(topic_name)["count"] == 2_000


def test_tail_begins_with_the_last_records_and_shows_what_is_lost(
    server: ServerProcess, api: Api, topic_name: str
) -> None:
    """CLI-7: loss is explicit on a terminal too."""
    shell = Shell(server.url)
    api.put(topic_name, cap_records=3)
    api.write(topic_name, *({"data": {"n": n}, "tag": "t g" if n % 2 else "even"} for n in range(5)))
    last = shell.out("tail", topic_name, "--no-follow", "--last", "2").splitlines()
    assert [line.split("  ", 2)[0] for line in last] == ["4", "5"]
    assert last[0].endswith('  "t g"  {"n": 3}')
    assert last[1].endswith('  even  {"n": 4}')
    whole = shell.out("tail", topic_name, "-F").splitlines()
    assert len(whole) == 3, "what was evicted before is no gap to a read of the last records"
    printed = shell.json("tail", topic_name, "-F", "--from-seq", "0")
    assert [each.get("gap_to") or each["$seq"] for each in printed] == [2, 3, 4, 5]
    out, said = shell.run("tail", topic_name, "-F", "--from-seq", "0", "--data")
    assert out == '{"n": 2}\n{"n": 3}\n{"n": 4}\n'
    assert said == "-- seqs 1 to 2 are gone: cap\n"


# A shell that runs tests in the background has its children ignore SIGINT, and they pass that on.
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from topics.__main__ import main; main()"
)


@contextmanager
def tailing(url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", INTERRUPTIBLE, "tail", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment(url)) as tail:
        try:
            yield tail
        finally:
            tail.kill()


def test_tail_follows_until_it_is_interrupted(server: ServerProcess, api: Api, topic_name: str) -> None:
    api.write(topic_name, {"data": "{\n}"})
    with tailing(server.url, topic_name, "--data") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b'"{\\n}"\n'
        for n in range(2):
            api.write(topic_name, {"data": n})
            assert tail.stdout.readline() == b"%d\n" % n
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=20)
    assert (tail.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_goes_away_ends_tail_quietly(server: ServerProcess, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 5_000)
    with tailing(server.url, topic_name, "--from-seq", "0") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        until(lambda: tail.poll() is not None, "the end of tail")
        assert (tail.returncode, tail.stderr.read()) == (0, b"")


def test_ls_and_show_say_what_topics_and_queues_hold(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLI-8: ready, in flight and delayed."""
    shell = Shell(server.url)
    jobs, log = f"{topic_name}.jobs", f"{topic_name}.log"
    api.put(jobs, type="queue")
    api.write(jobs, {"data": 1}, {"data": 2}, {"data": 3, "delay_ms": 600_000})
    api.put(log)
    api.call("POST", f"/v0/topics/{jobs}/claim", {"node": "w"}).ok()
    listed = [line.split() for line in shell.out("ls", topic_name).splitlines()]
    assert [row[3] for row in listed] == ["TOPIC", jobs, log]
    assert (listed[1][0], listed[1][2], listed[2][0]) == ("3", "3", "0")
    shown = dict(line.split(maxsplit=1) for line in shell.out("show", jobs).splitlines())
    assert (shown["ready"], shown["in_flight"], shown["delayed"], shown["lease_ms"]) == ("1", "1", "1", "30000 (30s)")
    plain = shell.out("show", log)
    assert "lease_ms" not in plain
    assert "last_write" in plain


def test_what_fails_is_one_line_with_what_to_do(server: ServerProcess, tmp_path: Path, topic_name: str) -> None:
    """CLI-9."""
    shell = Shell(server.url)
    assert shell.fails(5, "tail", topic_name).startswith(
        f'topics tail: topic "{topic_name}" does not exist (404 topic_not_found); '
    )
    assert failed(run("http://127.0.0.1:1", "ls"), 3) == (
        "topics ls: cannot reach http://127.0.0.1:1: connection refused; start one with `topics serve`, or name another"
        " server with --url, --profile or TOPICS_URL"
    )
    assert 'the address "ftp://x" is not valid' in shell.fails(2, "ls", "--url", "ftp://x")
    assert "--token-file" in shell.fails(1, "ls", "--token-file", str(tmp_path / "none"))
    assert "a b" in shell.fails(1, "publish", "a b", "1")
    assert "does not exist" in shell.fails(5, "publish", topic_name, "1", "--existing")


def test_the_key_comes_from_the_environment_or_a_file(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """CLI-9."""
    url = start_server(api_keys="reader:read,other").url
    reader = Shell(url, TOPICS_TOKEN="reader")
    assert f"{url} wants a key (401 unauthorized); put" in Shell(url, TOPICS_TOKEN="").fails(4, "ls")
    assert "does not know this key" in Shell(url, TOPICS_TOKEN="wrong").fails(4, "ls")
    reader.run("ls")
    assert "(403 forbidden)" in reader.fails(4, "publish", "t", "1")
    (tmp_path / "key").write_text("other\n")
    reader.run("publish", "t", "1", "--token-file", str(tmp_path / "key"))
