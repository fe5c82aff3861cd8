"""What one server feeds: readers of Blocks as Spark tasks are, one connection each, and what they cost the server.

`python -m bench.feed`. The readers take in what they get and do not decode it. On one machine they share the cores with
the server; so beside the rate that was reached there is the server's own CPU time, from which follows what it could
feed to readers on other machines: its event loop is one thread, which has one core.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.spark import append
from topics.testing import ServerProcess

TICKS = os.sysconf("SC_CLK_TCK")
ANSWER_BYTES = 1 << 19


def read(host: str, port: int, topic: str, from_seq: int, to_seq: int) -> int:
    """Read a range as a task does, the next answer asked for when one is there; the bytes."""
    connection = http.client.HTTPConnection(host, port)
    taken = 0
    while from_seq < to_seq:
        connection.request("GET", f"/v0/topics/{topic}/blocks?from_seq={from_seq}&to_seq={to_seq}&bytes={ANSWER_BYTES}")
        body = connection.getresponse().read()
        (length,) = struct.unpack_from("<I", body, 4)
        from_seq = json.loads(body[8 : 8 + length])["next_from_seq"]
        taken += len(body)
    connection.close()
    return taken


def readers(server: ServerProcess, topic: str, records: int, n: int) -> tuple[float, float, int]:
    """Read a topic once with n readers at a time; the seconds, the server's CPU seconds, and the bytes."""
    edges = [records * i // n for i in range(n + 1)]
    command = [sys.executable, "-m", "bench.feed", "--task", server.host, str(server.port), topic]
    started, before = time.perf_counter(), cpu(server.pid)
    tasks = [
        subprocess.Popen([*command, str(edges[i]), str(edges[i + 1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for i in range(n)
    ]
    for task in tasks:
        assert task.stdout is not None
        assert task.stdout.readline() == b"ready\n"
    started, before = time.perf_counter(), cpu(server.pid)
    for task in tasks:
        assert task.stdin is not None
        task.stdin.write(b"\n")
        task.stdin.flush()
    taken = sum(int(task.stdout.readline()) for task in tasks if task.stdout is not None)
    seconds, spent = time.perf_counter() - started, cpu(server.pid) - before
    for task in tasks:
        task.communicate()
    return seconds, spent, taken


def cpu(pid: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    if sys.argv[1:2] == ["--task"]:
        host, port, topic, first, last = sys.argv[2:]
        print("ready", flush=True)
        sys.stdin.readline()
        print(read(host, int(port), topic, int(first), int(last)), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ServerProcess(Path(scratch) / "data") as server:
        append(server, "feed", given.records)
        readers(server, "feed", given.records, 2)
        print("| readers | records/s | MB/s | server CPU per million records | one core could feed |")
        print("|---|---|---|---|---|")
        for n in given.readers:
            seconds, spent, taken = readers(server, "feed", given.records, n)
            rate, each = given.records / seconds, spent / given.records * 1e6
            print(
                f"| {n} | {rate:,.0f} | {taken / seconds / 1e6:,.0f} | {each:.3f} s | {1e6 / each:,.0f} records/s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
