"""Sustained ingest: writes of 1,000 records as fast as the server takes them, for 10 million records and longer.

What counts is that nothing grows with the number of records: the last million goes in as fast as the first, the memory
of the server has a bound, a bystander (a small POST and a diff every 5 ms, in a process of its own) is served all the
while, and a restart after kill -9 reads no more than it would have after the first million. The writer is honest: what
is answered 429 is sent again after `retry_after_ms`.

`python -m bench.sustained 1000000 100` prints the rows for a million records into 100 topics.
"""

from __future__ import annotations

import collections
import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import records
from bench.bed import Bench, anon_mib
from bench.load import content_length, request
from bench.pages import Pages
from bench.row import Row, at_least, at_most

HERE = Path(__file__).resolve().parents[1]
TOPICS = {"sustained-1-topic": 1, "sustained-100-topics": 100}
PARTS = ("", "-memory", "-bystander", "-restart")
ROWS = tuple(name + part for name in TOPICS for part in PARTS)
RECORDS, RECORDS_FULL = 10**7, 10**8
MILLION = 10**6
BATCH = 1_000
AHEAD = 4
SAMPLE_S = 0.01


class Ingest(NamedTuple):
    """What the writer saw."""

    seconds: float
    first: float
    """Records per second of the first million."""
    last: float
    refused: int


def measure(bench: Bench) -> Iterator[Row]:
    """Ingest into one topic and into many."""
    wanted = {name: topics for name, topics in TOPICS.items() if bench.wants(*(name + part for part in PARTS))}
    if not wanted:
        return
    with bench.scratch() as scratch:
        pages = Pages(scratch)
        for name, topics in wanted.items():
            yield from rows(bench, name, topics, RECORDS_FULL if bench.full else RECORDS, pages)


def rows(bench: Bench, name: str, topics: int, count: int, pages: Pages) -> Iterator[Row]:
    """The rows for `count` records into so many topics."""
    filled = pages.fill()
    with bench.server() as server:
        for i in range(topics):
            records.create(server, f"t{i}", durability="disk")
        memory = Memory(server.pid)
        with memory, bystander(server.host, server.port) as waits:
            seen = ingest(server.host, server.port, topics, count)
        files = len(list((server.data_dir / "segments").iterdir())) / topics
        snapshots = sum(path.stat().st_size for path in (server.data_dir / "snapshots").iterdir()) / (1 << 20)
        server.kill()
        seconds = bench.start(server)
        own = re.findall(r"in ([0-9.]+) s", server.log())[-1]
        assert sum(records.head_seq(server, f"t{i}") for i in range(topics)) == count
        waits.sort()
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        title = f"{count:,} records into {topics} topic{'s' if topics > 1 else ''}, writes of {BATCH:,}"
        rates = f"first million {seen.first:,.0f}/s, last {seen.last:,.0f}/s; {files:,.0f} files per topic"
        yield Row(
            name,
            title,
            records_s=count / seen.seconds,
            ratio=seen.last / seen.first,
            target=at_least(0.9, "ratio"),
            note="; ".join(filter(None, (rates, f"{seen.refused} REFUSED" if seen.refused else "", filled))),
        )
        yield Row(f"{name}-memory", "largest RssAnon", mib=memory.peak_mib, target=at_most(400, "mib"))
        yield Row(
            f"{name}-bystander",
            "a small POST or diff meanwhile",
            p50_ms=p50,
            p99_ms=p99,
            target=at_most(25, "p99_ms"),
            note=f"longest {waits[-1]:.0f} ms",
        )
        yield Row(
            f"{name}-restart",
            "restart after kill -9",
            seconds=seconds,
            target=at_most(1.5, "seconds"),
            note=f"snapshot of {snapshots:,.0f} MiB; replay {own} s",
        )


def ingest(host: str, port: int, topics: int, count: int) -> Ingest:
    """Write `count` records, to the topics in turn, `AHEAD` requests at a time."""
    body = records.batch(BATCH)
    requests = [request("POST", b"/v0/topics/t%d?return_seqs=false" % i, body, host) for i in range(topics)]
    todo = collections.deque(range(count // BATCH))
    sent: collections.deque[int] = collections.deque()
    done = refused = 0
    begin = time.monotonic()
    marks = [begin]
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = _answers(sock)
        while todo or sent:
            while todo and len(sent) < AHEAD:
                sent.append(todo.popleft())
                sock.sendall(requests[sent[-1] % topics])
            status, answer = next(answers)
            number = sent.popleft()
            if status == 429:
                refused += 1
                todo.appendleft(number)
                time.sleep(json.loads(answer)["error"]["detail"]["retry_after_ms"] / 1000)
                continue
            assert status < 300, answer
            done += BATCH
            if done % MILLION == 0:
                marks.append(time.monotonic())
    first, last = marks[1] - marks[0], marks[-1] - marks[-2]
    return Ingest(marks[-1] - begin, MILLION / first, MILLION / last, refused)


def _answers(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The answers on a connection: status and body."""
    buffer = b""
    while True:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            buffer += _more(sock)
        stop = end + 4 + content_length(buffer[:end])
        while len(buffer) < stop:
            buffer += _more(sock)
        yield int(buffer[9:12]), buffer[end + 4 : stop]
        buffer = buffer[stop:]


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    assert data, "the server closed the connection"
    return data


@contextlib.contextmanager
def bystander(host: str, port: int) -> Iterator[list[float]]:
    """A client that does little; the list has its waits in milliseconds once the block has ended."""
    waits: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.bystander", host, str(port)],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield waits
        waits += [ms for _, ms in json.loads(process.communicate()[0])["waits"]]
    finally:
        process.kill()
        process.wait()


class Memory(threading.Thread):
    """Watches the anonymous memory of a process while a block runs."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ends = threading.Event()
        self.peak_mib = 0.0

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()

    def run(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            self.peak_mib = max(self.peak_mib, anon_mib(self._pid))


def main() -> None:
    """Print the rows for a number of records and topics."""
    count, topics = int(sys.argv[1]), int(sys.argv[2])
    bench = Bench()
    with bench.scratch() as scratch:
        for row in rows(bench, f"sustained-{topics}", topics, count, Pages(scratch)):
            print(row.line({}), flush=True)


if __name__ == "__main__":
    main()
