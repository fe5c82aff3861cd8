"""What open consoles cost a server that is busy with writes.

Twenty pages ask as the console does, each every two seconds: ten look at the overview, five at a topic, five at a
queue. A busy server has one core, and what they take of it is what its writes lose: the figure is the rest, 0.98 where
they take 2 percent. It is the processor time of a server that has nothing else to do, with them and without.

The same writes with and without consoles, in turns, are in the note. Their rounds differ by more than consoles cost, so
they show that it is not much more than the figure, and no more than that.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import records
from bench.bed import Bench, cpu_s
from bench.row import Row, at_least
from topics.testing import ServerProcess

ROWS = ("console-20", "console-20-5000-topics")
EVERY_S = 2.0
CONSOLES = 20
PAIRS_PER_ROUND = 3
SHARE_S = 10.0
OVERVIEW = ("/v0/overview?limit=100&order=rate&filter=",)
TOPIC = ("/v0/overview?topic=one",)
QUEUE = ("/v0/overview?topic=jobs", "/v0/topics/jobs/leases?limit=50")
PAGES = (OVERVIEW, TOPIC, OVERVIEW, QUEUE)


def measure(bench: Bench) -> Iterator[Row]:
    """Writes beside consoles, with few topics and with many."""
    for name, topics in zip(ROWS, (20, 5000), strict=True):
        if bench.wants(name):
            with bench.server(max_topics=0) as server:
                _prepare(server, topics)
                yield _beside(bench, name, server, topics)


def _prepare(server: ServerProcess, topics: int) -> None:
    # A topic that is sealed now and then would make some rounds dearer than others.
    records.create(server, "one", durability="ephemeral", cap_records=10_000)
    records.create(server, "jobs", type="queue")
    for i in range(topics):
        records.create(server, f"other{i}", durability="memory")
    server.request("POST", "/v0/topics/jobs", json={"records": [{"data": n} for n in range(100)]})
    server.request("POST", "/v0/topics/jobs/claim", json={"node": "w", "max": 50})


def _beside(bench: Bench, name: str, server: ServerProcess, topics: int) -> Row:
    share = _share(server, CONSOLES) - _share(server, 0)
    ratios, rows = [], []
    bench.measure(name, "", server, records.post("one"))
    for i in range(PAIRS_PER_ROUND * bench.rounds + 1):
        # The order changes, so that a server that gets slower or faster on the way does not count for either.
        pair = {}
        for looked_at in (False, True) if i % 2 else (True, False):
            with _consoles(server, CONSOLES if looked_at else 0):
                pair[looked_at] = bench.measure(name, "", server, records.post("one"))
        alone, beside = pair[False].cpu_us, pair[True].cpu_us
        assert alone is not None
        assert beside is not None
        ratios.append(alone / beside)
        rows.append(pair[True])
    row = sorted(rows, key=lambda each: each.requests_s or 0)[len(rows) // 2]
    row.title = f"POST one record beside {CONSOLES} open consoles, {topics} topics"
    row.ratio, row.target = 1 - share, at_least(0.98, "ratio")
    low, middle, high = statistics.quantiles(ratios)
    row.add_note(f"{share:.2%} of a core; {len(ratios)} pairs of rounds: {middle:.3f} ({low:.3f} to {high:.3f})")
    return row


def _share(server: ServerProcess, consoles: int) -> float:
    """What part of its core the server uses beside so many consoles."""
    with _consoles(server, consoles):
        # The first round of looks at all topics is not what goes on for hours.
        time.sleep(EVERY_S)
        used, begin = cpu_s(server.pid), time.monotonic()
        time.sleep(SHARE_S)
        return (cpu_s(server.pid) - used) / (time.monotonic() - begin)


@contextmanager
def _consoles(server: ServerProcess, count: int) -> Iterator[None]:
    """Open consoles that ask one after the other, evenly over EVERY_S."""
    stopped = threading.Event()
    asking = threading.Thread(target=_ask, args=(server, count, stopped))
    asking.start()
    try:
        yield
    finally:
        stopped.set()
        asking.join()


def _ask(server: ServerProcess, count: int, stopped: threading.Event) -> None:
    links = [http.client.HTTPConnection(server.host, server.port, timeout=30) for _ in range(count)]
    begin = time.monotonic()
    turn = 0
    while count and not stopped.wait(max(0.0, begin + turn * EVERY_S / count - time.monotonic())):
        link = links[turn % count]
        for path in PAGES[turn % count % len(PAGES)]:
            link.request("GET", path, headers={"Accept": "application/json"})
            reply = link.getresponse()
            reply.read()
            assert reply.status == 200
        turn += 1
    for link in links:
        link.close()
