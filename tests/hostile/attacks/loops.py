"""Attacks by repetition: one request after the other, on a few connections, each of which is cheap by itself."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator

from tests.hostile.attack import Target, attack
from tests.hostile.attacks.commands import client, scaled
from tests.hostile.attacks.crowds import connections, message, read_all, request_text, reset
from tests.hostile.attacks.streams import JSON, websocket


def flood(target: Target, requests: Iterator[bytes], connections: int = 4) -> None:
    """Send one request after the other on each of some connections, each after the answer to the one before."""
    ends = time.monotonic() + target.seconds
    lock = threading.Lock()

    def one() -> None:
        connection = target.connect()
        while time.monotonic() < ends:
            with lock:
                request = next(requests)
            connection.sendall(request)
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(1 << 20)
            head, _, content = received.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            while len(content) < length:
                content += connection.recv(1 << 20)
            assert b" 500 " not in head, content[:300]
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def forever(*requests: bytes) -> Iterator[bytes]:
    while True:
        yield from requests


@attack("description-loop")
def description_loop(target: Target) -> None:
    """Asks for the description of the API, the pages and the overview in a loop."""
    paths = ("/v0/openapi.json", "/", "/topics.js", "/v0/overview", "/v0/metrics", "/v0/docs")
    flood(target, forever(*(request_text("GET", path) for path in paths)), 8)


@attack("recreate-loop", in_slice=False)
def recreate_loop(target: Target) -> None:
    """Creates, writes, reads and deletes one topic in a loop, while streams watch it."""
    topic = "/v0/topics/again"
    write = request_text("POST", topic, b'{"records":[{"data":1},{"data":2}]}')
    flood(target, forever(write, request_text("POST", topic + "/diff", b"{}"), request_text("DELETE", topic)))


def _fill_flapping(target: Target) -> None:
    with client(target) as call:
        call.fill("flap", (f'{{"data":{i},"tag":"t{i % 100}"}}' for i in range(scaled(500_000, target))))


@attack("config-flap", prepare=_fill_flapping, in_slice=False)
def config_flap(target: Target) -> None:
    """Tightens and loosens the cap, the TTL and the class of a large topic in a loop."""
    configs = [
        *({"cap_records": n} for n in (0, 400_000, 1_000_000, 300_000)),
        {"ttl_ms": 10**12},
        {"durability": "ephemeral"},
        {"durability": "fsync"},
        {"durability": "memory"},
        *({"cap_bytes": n} for n in (10**9, 0, 8_000_000)),
        {"durability": "disk"},
        {"discard": "reject"},
        {"discard": "old"},
    ]
    flood(target, forever(*(request_text("PUT", "/v0/topics/flap", json.dumps(one).encode()) for one in configs)))


@attack("router-loop", in_slice=False)
def router_loop(target: Target) -> None:
    """Creates and deletes routers in a loop, beside writes to their source."""
    write = request_text("POST", "/v0/topics/looped", b'{"records":[{"data":1}]}')
    router = request_text("PUT", "/v0/routers/loop", b'{"source":"looped","dest":"copies"}')
    gone = request_text("DELETE", "/v0/routers/loop")
    flood(target, forever(router, write, gone, write))


@attack("hops", in_slice=False)
def hops(target: Target) -> None:
    """Writes into a ring of routers in which every record goes round until it has made all its hops."""
    with client(target) as call:
        for i in range(5):
            call("PUT", f"/v0/routers/hop{i}", {"source": f"hop{i}", "dest": f"hop{(i + 1) % 5}", "allow_cycle": True})
        ends = time.monotonic() + target.seconds
        while time.monotonic() < ends:
            call("POST", "/v0/topics/hop0", {"records": [{"data": 1}] * 100})


@attack("refused-appends", in_slice=False)
def refused_appends(target: Target) -> None:
    """Appends on a condition that never holds, and repeats writes under keys that are known."""
    refused = request_text("POST", "/v0/topics/cond", b'{"records":[{"data":1}],"expected_head_seq":99}')
    known = request_text("POST", "/v0/topics/cond", b'{"records":[{"data":1}],"idempotency_key":"k"}')
    flood(target, forever(known, refused), 16)


@attack("key-flood", in_slice=False)
def key_flood(target: Target) -> None:
    """Writes with a new idempotency key of 256 characters each time, to a topic that forgets them soon."""
    target.request("PUT", "/v0/topics/keys", {"idempotency_window_ms": 500, "cap_records": 10}, JSON)
    keys = (b'{"records":[{"data":1}],"idempotency_key":"%0256d"}' % i for i in range(1 << 40))
    flood(target, (request_text("POST", "/v0/topics/keys", key) for key in keys), 16)


def _lease_some(target: Target) -> None:
    with client(target) as call:
        call("PUT", "/v0/topics/storm", {"type": "queue", "max_deliveries": 1_000_000, "dead_letter": "storm.dead"})
        call.fill("storm", (f'{{"data":{i}}}' for i in range(scaled(100_000, target))))


@attack("lease-storm", prepare=_lease_some, in_slice=False)
def lease_storm(target: Target) -> None:
    """Claims a thousand jobs, extends them, gives them back with a reason, and so on."""
    ends = time.monotonic() + target.seconds
    with client(target) as call:
        while time.monotonic() < ends:
            jobs = call("POST", "/v0/topics/storm/claim", {"node": "w", "max": 1000})["claimed"]
            seqs = [job["$seq"] for job in jobs]
            for _ in range(3):
                call("POST", "/v0/topics/storm/extend", {"node": "w", "seqs": seqs, "lease_ms": 100})
            call("POST", "/v0/topics/storm/nack", {"node": "w", "seqs": seqs, "delay_ms": 50, "reason": "x" * 1000})
            call("GET", "/v0/topics/storm/leases")


@attack("time-scans", prepare=_fill_flapping, in_slice=False)
def time_scans(target: Target) -> None:
    """Reads a large topic from times and by tags that are nowhere, from its beginning."""
    diff = "/v0/topics/flap/diff"
    bodies = (
        {"from_ts": 1, "limit": 1},
        {"from_ts": 2**62, "limit": 1},
        {"match": "nowhere", "limit": 1000},
        {"match": ["tag", "Glob", "t9*"], "limit": 1000, "max_batch_bytes": 8 << 20},
        {"node": ["a"] * 1000, "limit": 1000},
    )
    flood(target, forever(*(request_text("POST", diff, json.dumps(body).encode()) for body in bodies)), 8)


@attack("long-heads", in_slice=False)
def long_heads(target: Target) -> None:
    """Sends heads as large as they may be, each another one: a name of 8 KiB, 99 lines, a long query."""

    def heads() -> Iterator[bytes]:
        for i in range(1 << 40):
            lines = "".join(f"x{i}-{j}: {'v' * 200}\r\n" for j in range(96))
            yield f"GET /v0/health?{i} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
            yield f"GET /v0/topics/bystander HTTP/1.1\r\nHost: localhost\r\n{'n' * 8000}{i}: v\r\n\r\n".encode()
            query = "&".join(f"{j}=%41" for j in range(3000))
            yield f"GET /v0/topics?{query}&page_size=1&x={i} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    flood(target, heads(), 8)


@attack("odd-json")
def odd_json(target: Target) -> None:
    """Sends JSON that is deep, or has numbers of a million digits, or names one key again and again."""
    digits, deep = b"1" * 900_000, b"[" * 400_000
    paths = {
        "/v0/topics/odd": (
            b'{"records":[{"data":%b}]}' % digits,
            b'{"records":[{"data":%b}]}' % deep,
            b'{"records":[{"data":1}],"x":%b}' % deep,
            b'{"records":[{"data":{%b}}]}' % b",".join([b'"a":1'] * 150_000),
            b'{"records":[{"data":1,"meta":{%b}}]}' % b",".join([b'"a":"b"'] * 100_000),
            b'{"records":[{"data":1}],"producer_id":"p","producer_seq":%b}' % digits,
            b'{"records":[{"data":"%b"}]}' % (b"\\ud800" * 150_000),
        ),
        "/v0/topics/odd/diff": (
            b'{"from_seq":%b}' % digits,
            b'{"from_seq":1e%b}' % digits,
            b'{"x":%b}' % deep,
            b"{%b}" % b",".join([b'"a":1'] * 150_000),
        ),
        "/v0/watch": (b'{"topics":{"odd":{"match":%b}}}' % deep, b'{"topics":{"odd":{"from_seq":%b}}}' % digits),
    }
    flood(target, forever(*(request_text("POST", path, body) for path, bodies in paths.items() for body in bodies)), 2)


@attack("gzip-members")
def gzip_members(target: Target) -> None:
    """Sends gzip bodies of very many members, empty ones and bombs."""
    bodies = (
        gzip.compress(b"") * 50_000,
        gzip.compress(b" " * (1 << 20)) * 256,
        gzip.compress(b" ") * 255 + gzip.compress(b'{"records":[{"data":1}]}'),
    )
    head = "POST /v0/topics/members HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n"
    flood(target, forever(*(head.format(len(body)).encode() + body for body in bodies)), 2)


@attack("websocket-single-bytes", in_slice=False)
def websocket_single_bytes(target: Target) -> None:
    """Sends a message in fragments of one byte, with empty fragments between them, on 10 WebSockets."""
    text = b'{"op":"ping","request_id":"%b"}' % (b"x" * 1000)
    first = b"".join(
        (b"\x01" if i == 0 else b"\x00") + b"\x81\0\0\0\0" + text[i : i + 1] + b"\x00\x80\0\0\0\0"
        for i in range(len(text))
    )
    message = first + b"\x80\x80\0\0\0\0"

    def send() -> None:
        ends = time.monotonic() + target.seconds
        while time.monotonic() < ends:
            connection = websocket(target)
            threading.Thread(target=read_all, args=(connection,), daemon=True).start()
            with contextlib.suppress(OSError):
                while time.monotonic() < ends:
                    connection.sendall(message * 10)
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("backup-loop", in_slice=False)
def backup_loop(target: Target) -> None:
    """Begins backups and ends none."""
    with client(target) as call:
        for _ in range(20):
            call("POST", "/v0/topics/kept", {"records": [{"data": "x" * 1000}] * 500})
    flood(target, forever(request_text("POST", "/v0/backup")), 8)


@attack("websocket-closing", in_slice=False)
def websocket_closing(target: Target) -> None:
    """Opens WebSockets and begins to close them in every wrong way, or never ends to close them."""
    ends = time.monotonic() + target.seconds
    opened = []
    bad = [
        b"\x88\x80\0\0\0\0",
        b"\x88\x81\0\0\0\0x",
        b"\x88\x82\0\0\0\0\x03\xec",
        b"\x08\x80\0\0\0\0",
        b"\xc1\x80\0\0\0\0",
    ]
    n = 0
    while time.monotonic() < ends:
        connection = websocket(target)
        n += 1
        with contextlib.suppress(OSError):
            connection.sendall(bad[n % 5] * 100 + b"\x81\x80\0\0\0\0" * 100)
        opened.append(connection)
        if len(opened) > 1000:
            reset(opened)
            opened = []
    reset(opened)


@attack("websocket-unsubscribe-loop", in_slice=False)
def unsubscribe_loop(target: Target) -> None:
    """Subscribes to 200 topics and unsubscribes from them, again and again, on 5 WebSockets."""
    names = [f"loop{i}" for i in range(200)]
    with client(target) as call:
        for name in names:
            call("POST", f"/v0/topics/{name}", {"records": [{"data": "x" * 1000}] * 20})
    both = message(json.dumps({"op": "subscribe", "topics": {name: {} for name in names}}).encode())
    both += message(json.dumps({"op": "unsubscribe", "topics": names}).encode())

    def loop() -> None:
        ends = time.monotonic() + target.seconds
        connection = websocket(target)
        threading.Thread(target=read_all, args=(connection,), daemon=True).start()
        with contextlib.suppress(OSError):
            while time.monotonic() < ends:
                connection.sendall(both)
        connection.close()

    threads = [threading.Thread(target=loop) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("many-topics-created", in_slice=False)
def many_topics_created(target: Target) -> None:
    """Creates topics by writes to new names as fast as they go, on 16 connections."""
    writes = (request_text("POST", f"/v0/topics/new{i}", b'{"records":[{"data":1}]}') for i in range(1 << 40))
    flood(target, writes, 16)


@attack("mixed-durability-writes", in_slice=False)
def mixed(target: Target) -> None:
    """Writes large records to fsync topics while their class flaps."""
    write = request_text("POST", "/v0/topics/mix", json.dumps({"records": [{"data": "x" * 100_000}]}).encode())
    puts = [
        request_text("PUT", "/v0/topics/mix", json.dumps({"durability": d}).encode())
        for d in ("fsync", "ephemeral", "memory", "disk")
    ]
    flood(target, forever(puts[0], write, write, puts[1], write, puts[2], write, puts[3], write), 8)


@attack("dry-run-deletes", in_slice=False)
def dry_run_deletes(target: Target) -> None:
    """Counts what deletes would take of a topic with 200,000 tags, by prefixes, in a loop."""
    with client(target) as call:
        call.fill("tagged", (f'{{"data":{i},"tag":"t{i:06}"}}' for i in range(200_000)))
    dry = [
        request_text(
            "POST",
            "/v0/topics/tagged/delete",
            json.dumps({"match": ["tag", "Glob", p + "*"], "dry_run": True}).encode(),
        )
        for p in ("t", "t1", "t00", "x")
    ]
    flood(target, forever(*dry), 8)


@attack("distinct-views", in_slice=False)
def distinct_views(target: Target) -> None:
    """Watches one topic with 1,000 streams, each with a filter of its own, and writes to it."""
    opened = []
    with client(target) as call:
        call("POST", "/v0/topics/viewed", {"records": [{"data": 1, "tag": "t", "node": "n"}]})
        for i in range(1000):
            body = {"topics": {"viewed": {"tail": True, "match": ["tag", "Glob", f"t{i}*"]}}, "node": f"n{i}"}
            url = call("POST", "/v0/watch", body)["stream_url"]
            opened += connections(target, 1, request_text("GET", url))
    for connection in opened[:50]:
        threading.Thread(target=read_all, args=(connection,), daemon=True).start()
    batch = json.dumps({"records": [{"data": "x" * 100, "tag": f"t{i}", "node": f"n{i}"} for i in range(500)]}).encode()
    flood(target, forever(request_text("POST", "/v0/topics/viewed", batch)), 2)
    reset(opened)
