"""Workers, a router and a dead-letter topic through kill -9: everything produced ends acked or dead.

QUEUE-28: at the end the sum of acked and dead-lettered equals what was produced, and nothing is left.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable

from tests.harness.api import Api, Json, until
from topics.testing import ServerProcess

KILLS = 4
PRODUCERS = WORKERS = 3
POISON = 10
"""Every so many jobs one is never acked."""
MAX_DELIVERIES = KILLS + 3
"""A kill may cost a good job a delivery, and so may a machine that stands still for longer than a lease."""
_GONE = (OSError, http.client.HTTPException)


class Site:
    """A server that comes and goes, and clients that do not give up."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.produced: set[str] = set()
        self.asked: set[str] = set()
        self.acked: set[str] = set()

    def insist(self, api: Api | None, path: str, body: Json) -> tuple[Api, Json | None]:
        """POST until it is answered; None where the server was gone and the answer is not known."""
        try:
            api = api or Api(self.server.host, self.server.port)
            reply = api.call("POST", path, body)
            if reply.status == 503:
                time.sleep(0.02)
                return api, None
            return api, reply.ok()
        except _GONE:
            if api is not None:
                api.close()
            time.sleep(0.02)
            return Api(self.server.host, self.server.port), None

    def produce(self, worker: int) -> None:
        """Write jobs to the router's source, each until it is acked; the key makes repeats harmless."""
        api: Api | None = None
        number = 0
        while not self.stop.is_set():
            job = f"{worker}-{number}"
            body = {"records": [{"data": job}], "idempotency_key": job}
            api, answer = self.insist(api, "/v0/topics/in", body)
            if answer is not None:
                with self.lock:
                    self.produced.add(job)
                number += 1
        if api is not None:
            api.close()

    def work(self, worker: int) -> None:
        """Claim and ack, except for jobs that are poison."""
        api: Api | None = None
        node = f"w{worker}"
        while not self.stop.is_set():
            api = self.work_once(api, node)
        if api is not None:
            api.close()

    def work_once(self, api: Api | None, node: str) -> Api:
        """One claim and what follows from it."""
        api, answer = self.insist(api, "/v0/topics/q/claim", {"node": node, "max": 5, "lease_ms": 2000, "wait_ms": 50})
        jobs = [] if answer is None else answer["claimed"]
        good = [job for job in jobs if not job["data"].endswith(f"{POISON - 1}")]
        bad = [job["$seq"] for job in jobs if job not in good]
        if good:
            names = {job["$seq"]: job["data"] for job in good}
            with self.lock:
                self.asked |= set(names.values())
            api, answer = self.insist(api, "/v0/topics/q/ack", {"node": node, "seqs": list(names)})
            if answer is not None:
                with self.lock:
                    self.acked |= {name for seq, name in names.items() if seq not in answer["skipped"]}
        if bad:
            api, _ = self.insist(api, "/v0/topics/q/nack", {"node": node, "seqs": bad})
        return api


def test_everything_produced_ends_acked_or_dead_through_kills(start_server: Callable[..., ServerProcess]) -> None:
    """QUEUE-28: no job is lost, none is left, none is acked and dead at once."""
    server = start_server()
    site = Site(server)
    api = Api(server.host, server.port)
    config = {"type": "queue", "durable": True, "max_deliveries": MAX_DELIVERIES, "dead_letter": "dead"}
    api.put("q", **config).ok(201)
    api.put("in", durable=True).ok(201)
    api.call("PUT", "/v0/routers/in-q", {"source": "in", "dest": "q"}).ok(201)
    api.close()
    threads = [threading.Thread(target=site.produce, args=(i,)) for i in range(PRODUCERS)]
    threads += [threading.Thread(target=site.work, args=(i,)) for i in range(WORKERS)]
    for thread in threads:
        thread.start()
    for kill in range(KILLS):
        mark = len(site.acked)
        until(lambda mark=mark: len(site.acked) > mark + 20, f"work goes on before kill {kill}")
        server.kill()
        server.restart()
    mark = len(site.acked)
    until(lambda: len(site.acked) > mark + 20, "work goes on after the last kill")
    site.stop.set()
    for thread in threads:
        thread.join(30)

    api = Api(server.host, server.port)

    def drained() -> bool:
        site.work_once(api, "last")
        return bool(api.state("q")["count"] == 0)

    until(drained, "the queue is empty", 60)
    dead = set()
    from_seq = 0
    while True:
        page = api.read("dead", from_seq, limit=1000)
        dead |= {record["data"] for record in page["records"]}
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            break
    copied = api.get("/v0/routers/in-q").ok(200)["forwarded_total"]
    written = api.state("in")["count"]
    api.close()
    assert copied == written
    assert site.produced <= site.asked | dead
    assert not site.acked & dead
    assert dead == {job for job in site.produced | dead if job.endswith(f"{POISON - 1}")}
