"""Attacks by writing: as much as the server takes, for as long as it takes it."""

from __future__ import annotations

import json
import time

from tests.hostile.attack import Target, attack

RECORD = (
    b'{"data":{"type":"resize","url":"s3://bucket/2026/11/picture-000042.png","width":256,"height":256,"owner":"t-42"}}'
)
BATCH = 1_000
BODY = b'{"records":[' + b",".join([RECORD] * BATCH) + b"]}"
AHEAD = 4
HEAD = b"POST /v0/topics/%b?return_seqs=false HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@attack("sustained-ingest")
def one_topic(target: Target) -> None:
    """Writes batches of 1,000 records to one topic as fast as the server takes them."""
    _ingest(target, 1)


@attack("sustained-ingest-1000-topics")
def many_topics(target: Target) -> None:
    """Writes batches of 1,000 records to 1,000 topics in turn, each of which stays below the size of a segment."""
    _ingest(target, 1_000)


def _ingest(target: Target, topics: int) -> None:
    requests = [
        HEAD % b"flood-%d" % i + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY) for i in range(min(topics, 1_000))
    ]
    connection = target.connect()
    answers = connection.makefile("rb")
    ends = time.monotonic() + target.seconds
    sent = read = 0
    while time.monotonic() < ends or read < sent:
        while sent - read < AHEAD and time.monotonic() < ends:
            connection.sendall(requests[sent % topics])
            sent += 1
        if read == sent:
            break
        status = int(answers.readline().split()[1])
        length = 0
        while (line := answers.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        answer = json.loads(answers.read(length))
        read += 1
        assert status in (200, 201, 429), answer
        if status == 429:
            assert answer["error"]["detail"]["retry_after_ms"] > 0, answer
    assert read > 0
    connection.close()
