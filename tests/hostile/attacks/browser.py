"""Attacks by a web page, through the browser of somebody who can reach a server without keys."""

from __future__ import annotations

import time

from tests.hostile.attack import Target, attack

JOBS = 50
IMAGE = (
    b"GET /v0/topics/browser.jobs/work?node=page&max=1000 HTTP/1.1\r\nHost: localhost\r\nAccept: image/*,*/*\r\n"
    b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n\r\n"
)
FORM = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


def make_jobs(target: Target) -> None:
    """A queue whose jobs die at their third delivery."""
    config = {"type": "queue", "max_deliveries": 3, "dead_letter": "browser.dead", "lease_ms": 100}
    json = {"Content-Type": "application/json"}
    target.request("PUT", "/v0/topics/browser.jobs", config, json)
    target.request("POST", "/v0/topics/browser.jobs", {"records": [{"data": n} for n in range(JOBS)]}, json)


def _ready(target: Target) -> int:
    ready: int = target.request("GET", "/v0/topics/browser.jobs").json["queue"]["ready"]
    return ready


@attack("page-takes-jobs", prepare=make_jobs)
def page_takes_jobs(target: Target) -> None:
    """Loads the work stream of a queue as an image, again and again, so that its jobs die."""
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        with target.connect() as connection:
            connection.sendall(IMAGE)
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 403 "), answer
    assert _ready(target) == JOBS


@attack("page-posts-nothing", prepare=make_jobs)
def page_posts_nothing(target: Target) -> None:
    """Posts forms without fields: a redrive needs no body, and a form needs no preflight."""
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        answer = target.request("POST", "/v0/topics/browser.jobs/redrive", headers=FORM)
        assert answer.status == 403, answer
    assert _ready(target) == JOBS


@attack("rebound-page", prepare=make_jobs)
def rebound_page(target: Target) -> None:
    """Reads and deletes as a page whose own name has come to mean this machine, of the same origin for its browser."""
    host = f"evil.example:{target.port}"
    rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        for method, path in (("GET", "/v0/topics"), ("DELETE", "/v0/topics/browser.jobs"), ("GET", "/")):
            answer = target.request(method, path, headers=rebound)
            assert answer.status == 421, answer
    assert _ready(target) == JOBS


@attack("preflight-flood")
def preflight_flood(target: Target) -> None:
    """Sends preflights with an origin and header names that are new and long each time."""
    connection = target.connect()
    ends = time.monotonic() + target.seconds
    number = 0
    while time.monotonic() < ends:
        number += 1
        connection.sendall(
            b"OPTIONS /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nOrigin: https://%d.example\r\n"
            b"Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: %b\r\n\r\n"
            % (number, b",".join(b"x-%d-%d" % (number, n) for n in range(1_000)))
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403 ")
    connection.close()
