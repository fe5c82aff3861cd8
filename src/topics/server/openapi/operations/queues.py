"""The operations on queues."""

from __future__ import annotations

from typing import Final

from topics.engine.queue.requests import (
    AckedJobs,
    AckJobs,
    ClaimJobs,
    ExtendedJobs,
    ExtendJobs,
    NackedJobs,
    NackJobs,
    RedriveJobs,
    RedrivenJobs,
)
from topics.errors import BatchTooLarge, NotAcceptable, NotAQueue, RecordTooLarge, TopicFull
from topics.server.api.queues import HISTORIES_SHOWN, HISTORIES_SHOWN_MAX, LEASES_SHOWN, LEASES_SHOWN_MAX
from topics.server.api.shapes import JobHistory, Leases
from topics.server.openapi.operation import CHANGING, EVENTS, READING, Answer, Operation, Parameter, whole
from topics.server.openapi.shapes import Claimed, ErrorEvent, JobEvent

GROUP: Final = "Queues"
_NAMES: Final = " The name of the worker is its `node`."
_TIMES: Final = {"server_total_ms": 0.058, "wal_append_ms": 0.011, "fsync_ms": 0.0}
_CLAIMED: Final = {
    "topic": "jobs",
    "claimed": [
        {
            "$seq": 1,
            "lease_id": "lease_1",
            "deadline": 1767225630000,
            "$ts": 1767225600000,
            "deliveries": 1,
            "data": {"send": "invoice"},
        }
    ],
    "count": 1,
    "ready": 0,
    "performance": {"server_total_ms": 0.072, "throttle_wait_ms": 0.0},
}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v0/topics/:topic/claim"): Operation(
        id="claim",
        group=GROUP,
        summary="Lease jobs",
        text="With `wait_ms` it waits for the first job." + _NAMES,
        body=ClaimJobs,
        example={"node": "worker-1", "max": 10, "wait_ms": 0},
        answers={200: (Answer("The jobs, perhaps none.", Claimed, _CLAIMED),)},
        errors=(NotAQueue, *READING, *CHANGING),
    ),
    ("POST", "/v0/topics/:topic/ack"): Operation(
        id="ack",
        group=GROUP,
        summary="Complete jobs, which deletes them",
        body=AckJobs,
        example={"node": "worker-1", "seqs": [1]},
        answers={
            200: (
                Answer(
                    "The jobs are done, but for those that the node does not hold.",
                    AckedJobs,
                    {
                        "topic": "jobs",
                        "acked": 1,
                        "skipped": [],
                        "ready": 0,
                        "in_flight": 0,
                        "performance": _TIMES,
                    },
                ),
            )
        },
        errors=(NotAQueue, BatchTooLarge, *READING, *CHANGING),
    ),
    ("POST", "/v0/topics/:topic/nack"): Operation(
        id="nack",
        group=GROUP,
        summary="Return jobs",
        body=NackJobs,
        example={"node": "worker-1", "seqs": [1], "delay_ms": 1000, "reason": "the mail server is down"},
        answers={
            200: (
                Answer(
                    "The jobs are given back, but for those that the node does not hold.",
                    NackedJobs,
                    {
                        "topic": "jobs",
                        "nacked": 1,
                        "skipped": [],
                        "ready": 0,
                        "in_flight": 0,
                        "performance": _TIMES,
                    },
                ),
            )
        },
        errors=(NotAQueue, BatchTooLarge, *READING, *CHANGING),
    ),
    ("POST", "/v0/topics/:topic/extend"): Operation(
        id="extend",
        group=GROUP,
        summary="Extend leases",
        body=ExtendJobs,
        example={"node": "worker-1", "seqs": [1], "lease_ms": 60_000},
        answers={
            200: (
                Answer(
                    "The leases run longer, but for those that the node does not hold.",
                    ExtendedJobs,
                    {
                        "topic": "jobs",
                        "extended": 1,
                        "skipped": [],
                        "deadlines": {"1": 1767225660000},
                        "performance": _TIMES,
                    },
                ),
            )
        },
        errors=(NotAQueue, BatchTooLarge, *READING, *CHANGING),
    ),
    ("POST", "/v0/topics/:topic/redrive"): Operation(
        id="redrive",
        group=GROUP,
        summary="Turn dead letters into jobs again",
        text="Without `seqs` and `match`, all dead letters of this queue.",
        body=RedriveJobs,
        body_required=False,
        example={"limit": 100, "dry_run": True},
        answers={
            200: (
                Answer(
                    "The dead letters that are jobs now, or would be.",
                    RedrivenJobs,
                    {
                        "topic": "jobs",
                        "dead_letter": "jobs.dead",
                        "redriven": 0,
                        "seqs": [],
                        "dry_run": True,
                        "performance": _TIMES,
                    },
                ),
            )
        },
        errors=(NotAQueue, BatchTooLarge, RecordTooLarge, TopicFull, *READING, *CHANGING),
    ),
    ("GET", "/v0/topics/:topic/leases"): Operation(
        id="leases",
        group=GROUP,
        summary="Which jobs are leased or delayed",
        parameters=(
            Parameter("limit", f"The most jobs, at most {LEASES_SHOWN_MAX}.", whole(least=1, default=LEASES_SHOWN)),
        ),
        answers={
            200: (
                Answer(
                    "The jobs.",
                    Leases,
                    {
                        "topic": "jobs",
                        "leases": [
                            {
                                "seq": 1,
                                "state": "leased",
                                "node": "worker-1",
                                "lease_id": "lease_1",
                                "deadline": 1767225630000,
                                "deliveries": 1,
                            }
                        ],
                        "performance": {"server_total_ms": 0.03},
                    },
                ),
            )
        },
        errors=(NotAQueue, *READING),
    ),
    ("GET", "/v0/topics/:topic/history"): Operation(
        id="history",
        group=GROUP,
        summary="What has happened to jobs that were not done at their first delivery",
        parameters=(
            Parameter("seq", "One job; without it, those that had trouble last.", whole(least=1)),
            Parameter(
                "limit", f"The most jobs, at most {HISTORIES_SHOWN_MAX}.", whole(least=1, default=HISTORIES_SHOWN)
            ),
        ),
        answers={
            200: (
                Answer(
                    "The jobs, the one that had trouble last comes first.",
                    JobHistory,
                    {
                        "topic": "jobs",
                        "jobs": [
                            {
                                "seq": 1,
                                "state": "ready",
                                "node": None,
                                "until": None,
                                "deliveries": 1,
                                "reason": "no answer",
                                "steps": [
                                    {
                                        "step": "released",
                                        "ts": 1767225600000,
                                        "node": "worker-1",
                                        "delivery": 1,
                                        "reason": "no answer",
                                        "until": None,
                                    }
                                ],
                            }
                        ],
                        "performance": {"server_total_ms": 0.03},
                    },
                ),
            )
        },
        errors=(NotAQueue, *READING),
    ),
    ("GET", "/v0/topics/:topic/work"): Operation(
        id="work",
        group=GROUP,
        summary="Receive jobs as server-sent events",
        text="The stream holds at most `max` jobs at a time: an ack, a nack or an expiry makes room for the next. When "
        "it ends, the jobs that were pushed on it and not acked are ready again.",
        parameters=(
            Parameter("node", "The worker.", {"type": "string", "minLength": 1}, required=True),
            Parameter("max", "The most jobs at a time.", whole(least=1, default=1)),
            Parameter("lease_ms", "As in a claim; by default that of the queue.", whole()),
        ),
        answers={200: (Answer("A stream of events.", content_type=EVENTS, schema={"type": "string"}),)},
        errors=(NotAQueue, NotAcceptable, *READING, *CHANGING),
        events={"job": JobEvent, "error": ErrorEvent},
    ),
}
