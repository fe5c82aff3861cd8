"""What the fields of bodies and answers mean, and the limits on them that their types do not say.

A text is found by struct and field, or else by the field alone: most names mean the same wherever they are used.
A field without a text fails a test (OPENAPI-3).
"""

from __future__ import annotations

from typing import Any, Final

from topics.engine.config import BACKOFF_MS_MAX, CLAIM_JITTER_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, PRIORITY_MAX
from topics.engine.engine import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX, DIFF_LIMIT_DEFAULT
from topics.engine.queue.failures import REASON_BYTES_MAX
from topics.engine.queue.requests import DELAY_MS_MAX, WAIT_MS_MAX
from topics.engine.write.batch import KEY_CHARS_MAX, META_KEYS_MAX
from topics.names import TOPIC_NAME
from topics.server.delivery.watch import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from topics.settings import Settings

TEXTS: Final[dict[str, str]] = {
    # Topics and their config
    "topic": "The name of the topic.",
    "topics": "The topics.",
    "created": "Whether this request created it.",
    "config": "The config of the topic.",
    "type": "`log` or `queue`; cannot be changed once the topic exists.",
    "ttl_ms": "Records expire after this many milliseconds; 0 means never.",
    "cap_records": "The most records that are kept; 0 means no cap.",
    "cap_bytes": "The most bytes that are kept; 0 means no cap.",
    "discard": "At the cap, `old` evicts the oldest records and `reject` refuses the write with a 422.",
    "durable": "Short for `durability`: true is `fsync`, false is `disk`.",
    "durability": "What a write that was answered survives: `ephemeral`, `memory`, `disk` or `fsync`.",
    "priority": f"From {-PRIORITY_MAX} to {PRIORITY_MAX}, beyond that clamped: higher is delivered first under "
    "pressure; null means automatic.",
    "auto_priority": "Without a `priority`, topics that were read recently come first.",
    "auto_create": "False in the config of a write: do not create the topic.",
    "idempotency_window_ms": "For how many milliseconds an `idempotency_key` is remembered.",
    "dedupe_node": "Whether readers can leave out their own records by `node`.",
    "lease_ms": f"How many milliseconds a job is leased for, clamped to {LEASE_MS_MIN} to {LEASE_MS_MAX}.",
    "claim_jitter_ms": "Collect claims for so many milliseconds and divide the jobs evenly; clamped to "
    f"{CLAIM_JITTER_MS_MAX}.",
    "max_deliveries": "After so many deliveries a job becomes a dead letter; 0 means never.",
    "dead_letter": "The topic for dead letters.",
    "leases_durable": "Sync leases to disk before a claim is answered.",
    "backoff_ms": "How long a job waits after a nack without `delay_ms`, doubled with each delivery; clamped to "
    f"{BACKOFF_MS_MAX}.",
    "backoff_max_ms": f"The longest such wait, clamped to {BACKOFF_MS_MAX}.",
    "head_seq": "The seq of the topic's last record; 0 where there never was one.",
    "earliest_seq": "The seq of the first record that is still there; `head_seq` + 1 where there is none.",
    "next_seq": "The seq that the next record gets.",
    "count": "How many records there are.",
    "bytes": "How many bytes they take.",
    "effective_priority": "The priority in effect right now.",
    "last_write_ts": "When the topic was last written to, in milliseconds since 1970.",
    "last_read_ts": "When the topic was last read, in milliseconds since 1970.",
    "erased_before_ts": "The text of whatever was removed before this time has left the disk.",
    "queue": "The jobs of a queue; absent in a log.",
    "next_cursor": "The `cursor` of the next page; absent on the last one.",
    "DeletedTopic.deleted": "Whether there was such a topic.",
    "routers_removed": "The routers that went with it.",
    "unknown_fields": "Fields of the request that the server does not know and has ignored, at most 20.",
    # Backups
    "backup": "The id of the backup.",
    "BackupBegun.lease_ms": "The backup ends by itself so long after its last request.",
    "snapshot": "The file of the checkpoint.",
    "BackupFile.file": "Where it is in a data directory.",
    "BackupFile.bytes": "How much of it belongs to the backup.",
    "Described.segments": "The names of segments, as the snapshot has them, at most 256.",
    "BackupSegments.segments": "What is known of each.",
    "segment": "The name of the segment.",
    "data_bytes": "The length of its `.data` file.",
    "index_bytes": "The length of its `.idx` file.",
    "mark": "The same only for the same content.",
    "flags_bytes": "The length of its `.flags` file.",
    "flags": "A checksum of its delete flags; null where nothing was deleted.",
    "BackupMoment.ts": "The time of the server, in milliseconds since 1970.",
    "lsn": "The last position of the log that belongs to the backup.",
    "boot_id": "Which start of the machine's kernel this is.",
    "wal": "The files of the log.",
    "ended": "Always true.",
    # Writing
    "records": "The records, in order.",
    "data": "Any JSON value; it is given back byte for byte.",
    "tag": "A label to select by.",
    "RecordIn.node": "The node that writes the record.",
    "meta": f"Up to {META_KEYS_MAX} strings by name.",
    "delay_ms": "In a queue: deliver the job after so many milliseconds.",
    "deliver_at": "In a queue: deliver the job at this time, in milliseconds since 1970; not together with `delay_ms`.",
    "Write.node": "The node of records that do not name one.",
    "Publish.node": "The node of records that do not name one.",
    "idempotency_key": "A retry with the same key gets the first answer; also accepted as the header "
    "`Idempotency-Key`.",
    "create": "False: a 404 if the topic does not exist.",
    "Write.config": "The config of the topic, if this write creates it.",
    "Publish.config": "The config of the topic, if this publish creates it; needs the scope `admin`.",
    "disable_backpressure": "Under load, wait instead of getting a 429.",
    "producer_id": "Who writes, for retries without a time limit; goes with `producer_seq`.",
    "producer_seq": "The number of this write: one at or below the producer's last is a retry.",
    "expected_head_seq": "Append only if this is the topic's `head_seq`, otherwise 409 `head_mismatch`.",
    "return_seqs": "False leaves the list of seqs out of the answer.",
    "first_seq": "The first seq.",
    "last_seq": "The last seq.",
    "seqs": "The seqs, in order.",
    "Written.count": "How many records were appended.",
    "Ack.count": "How many records were appended.",
    "deduped": "Whether this was a retry, answered with the first answer; nothing was appended.",
    "key_reused": "Present and true where a retry has other records than the first write: they were not appended.",
    # Reading
    "from_seq": "Read the records after this seq.",
    "from_ts": "Start at the first record with this time or a later one, in milliseconds since 1970.",
    "limit": f"The most records that are looked at; 0 means {DIFF_LIMIT_DEFAULT}, and more than TOPICS_MAX_LIMIT is "
    "clamped.",
    "max_batch_bytes": f"The most bytes, clamped to {BATCH_BYTES_MAX}; 0 means {BATCH_BYTES_DEFAULT}. At least one "
    "record is always delivered.",
    "node": "Leave out the records of this node, or of these nodes.",
    "match": "Only records with these tags.",
    "include_tags": "Whether records come with their tags.",
    "include_meta": "Whether records come with their meta.",
    "wait_ms": f"Wait up to so many milliseconds for something to deliver; clamped to {WAIT_MS_MAX}.",
    "next_from_seq": "The `from_seq` of the next read.",
    "caught_up": "Whether there is nothing more right now.",
    "lag": "How many seqs there still are after `next_from_seq`.",
    "tombstone": "What was lost before it was read, or null.",
    "$seq": "The seq.",
    "$ts": "When it was written, in milliseconds since 1970.",
    "$node": "The node that wrote it.",
    "$tag": "Its tag.",
    "$type": "Always `tombstone`.",
    "Tombstone.$seq": "The first seq that is still there.",
    "TombstoneEvent.$seq": "The first seq that is still there.",
    "TombstoneMessage.$seq": "The first seq that is still there.",
    "gap_from": "The first lost seq.",
    "gap_to": "The last lost seq.",
    "reason": "Why they were lost: `cap`, `ttl`, `mixed`, `recreated`, `crash`, `restart`, `corruption`, `source_trim` "
    "or, on a stream, `from_seq_too_old`.",
    "missed_estimate": "About how many records were lost.",
    "before_seq": "Delete the records below this seq.",
    "Deleted.deleted": "How many records were deleted.",
    "Deleted.count": "How many records are left.",
    "Deleted.bytes": "How many bytes they take.",
    # Scanning
    "epoch": "Changes when a topic is deleted and created again.",
    "evict_floor": "Below this seq, records were evicted or have expired.",
    "lost": "Ranges that cannot be read any more.",
    "from_ts_seq": "The `from_seq` that `from_ts` means.",
    "to_ts_seq": "The last seq before `to_ts`.",
    "Plan.deleted": "Runs of seqs that clients deleted, both ends included, at most 1000.",
    "deleted_to_seq": "Up to which seq `deleted` is known; ask again from there.",
    "gaps": "What a cursor would be told was lost on its way from `from_seq` to `to_seq`, at most 1000.",
    "segments": "The sealed segments, oldest first.",
    "file": "The file, relative to the data directory or the cold directory.",
    "cold": "Whether it is in the cold directory.",
    "SealedSegment.deleted": "Ranges of seqs in it that were deleted, both ends included.",
    "SealedSegment.bytes": "How many bytes the file has.",
    "blocks": "How many Blocks follow.",
    # Queues
    "ClaimJobs.node": "The worker.",
    "AckJobs.node": "The worker.",
    "NackJobs.node": "The worker.",
    "ExtendJobs.node": "The worker.",
    "LeaseState.node": "The worker.",
    "max": "The most jobs.",
    "AckJobs.seqs": "The jobs.",
    "NackJobs.seqs": "The jobs.",
    "ExtendJobs.seqs": "The jobs.",
    "NackJobs.delay_ms": f"Deliver them again after so many milliseconds, clamped to {DELAY_MS_MAX}; by default the "
    "queue's backoff.",
    "NackJobs.reason": f"Why, for people; it reaches the dead letter, cut to {REASON_BYTES_MAX} bytes.",
    "lease_ids": "The lease of each job, in the same order: a job that was leased again meanwhile is skipped.",
    "lease_id": "The lease.",
    "deadline": "When the lease ends, in milliseconds since 1970.",
    "LeaseState.deadline": "When the lease or the delay ends, in milliseconds since 1970.",
    "deliveries": "How often the job was delivered, this time included.",
    "claimed": "The jobs.",
    "Claimed.count": "How many jobs there are in `claimed`.",
    "ready": "How many jobs wait to be claimed.",
    "in_flight": "How many jobs are leased.",
    "dead_lettered": "How many jobs became dead letters.",
    "acked": "How many jobs were completed.",
    "nacked": "How many jobs were given back.",
    "extended": "How many leases were extended.",
    "skipped": "The seqs that the node does not hold.",
    "deadlines": "The new deadline of each seq.",
    "RedriveJobs.seqs": "Only these seqs of the dead-letter topic.",
    "RedriveJobs.limit": "The most dead letters; 0 means as many as one write may have.",
    "dry_run": "True only shows what would be done.",
    "redriven": "How many dead letters became jobs.",
    "RedrivenJobs.seqs": "Their seqs in the dead-letter topic.",
    "leases": "The jobs.",
    "seq": "The seq of the job.",
    "state": "`leased`, `lapsed` (the lease has run out) or `delayed`.",
    # Routers
    "router": "The name of the router.",
    "routers": "The routers.",
    "source": "The topic to copy from; created if missing.",
    "dest": "The topic to copy to.",
    "RouterSeen.source": "The topic to copy from; absent where the key may not touch it.",
    "RouterSeen.dest": "The topic to copy to; absent where the key may not touch it.",
    "preserve_node": "Whether copies keep their node.",
    "preserve_tag": "Whether copies keep their tag.",
    "create_dest": "False: a 404 if `dest` does not exist.",
    "filter": "Copy only records with these tags; null means all.",
    "allow_cycle": "Permit a router that closes a cycle.",
    "guarantee": "`exactly_once` adds a stable key to each copy, in `meta._topics_router`.",
    "forwarded_total": "How many copies it has made.",
    "RouterDeleted.deleted": "Whether there was such a router.",
    # Streams
    "WatchRequest.topics": "Where to begin in each topic.",
    "Subscribe.topics": "Where to begin in each topic; instead of `topic`.",
    "Subscribe.topic": "The topic; instead of `topics`.",
    "Unsubscribe.topic": "The topic; instead of `topics`.",
    "Unsubscribe.topics": "The topics; instead of `topic`.",
    "Unsubscribed.topics": "The topics, where the command named them so.",
    "Unsubscribed.topic": "The topic, where the command named one.",
    "tail": "Start at the head.",
    "include_data": "False leaves `data` out.",
    "WatchRequest.max_batch_bytes": f"The most bytes in one event, clamped to {BATCH_BYTES_MAX}.",
    "Subscribe.max_batch_bytes": f"The most bytes in one message, clamped to {BATCH_BYTES_MAX}.",
    "consistency": "`strong` delivers only records that are synced.",
    "heartbeat_ms": f"Send a comment after so many milliseconds of silence, clamped to {HEARTBEAT_MS_MIN} to "
    f"{HEARTBEAT_MS_MAX}.",
    "cursor": "Resume at the last `id` of an earlier session.",
    "wid": "The name of the session; keep it to yourself.",
    "stream_url": "Where to open the stream.",
    "session_ttl_ms": "How many milliseconds the session lives without a stream.",
    "Watched.from_seq": "The records after this seq are delivered.",
    "RecordEvent.from_seq": "The first seq of the batch.",
    "RecordMessage.from_seq": "The first seq of the batch.",
    "to_seq": "The last seq that was looked at.",
    "TopicDeletedEvent.reason": "Always `deleted`.",
    "TopicDeletedMessage.reason": "Always `deleted`.",
    "ErrorEvent.code": "429, or why the stream ends.",
    "ErrorEvent.error": "What happened, for people.",
    "retry_after_ms": "For how many milliseconds the stream is paced.",
    "ErrorEvent.topics": "The topics that are paced.",
    "op": "What the message is.",
    "request_id": "Chosen by the client; the answer repeats it.",
    # The server
    "status": "Always this.",
    "version": "The version of the server.",
    "uptime_ms": "Milliseconds since the start.",
    "wal_replay_complete": "Always true.",
    "Ready.topics": "How many topics there are.",
    "key": "The name of the key in logs; null on a server without keys.",
    "scopes": "What the key may do.",
    "prefixes": "The names that the key may touch begin with one of these; none means all names.",
    "error": "What went wrong.",
    "code": "Stable: what a program decides by.",
    "message": "For people.",
    "Problem.request_id": "What the log of the server calls this request.",
    "detail": "The same for machines: the field, the value, the limit.",
    "performance": "How long the server took.",
    "server_total_ms": "From the first byte of the request to the answer.",
    "wal_append_ms": "Writing to the log.",
    "fsync_ms": "Syncing the log.",
    "throttle_wait_ms": "Held back under pressure.",
    "records_scanned": "How many seqs were looked at.",
}

MATCH: Final[dict[str, Any]] = {
    "description": "Which tags: one tag, or `Eq` and a tag, or `Glob` and a prefix followed by `*`.",
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": r"^[^*]*\*$"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {"type": "null"},
    ],
    "examples": ["paid", ["tag", "Eq", "paid"], ["tag", "Glob", "customer:*"]],
}
"""The syntax of `match` and `filter` (DELETE-3), as a schema of its own."""


def limits(settings: Settings) -> dict[str, dict[str, Any]]:
    """What the schema of a field says beyond its type, on a server with these settings; found as texts are."""
    match = {"$ref": "#/components/schemas/Match"}
    node = {"maxLength": settings.max_node_bytes}
    worker = {**node, "minLength": 1}
    records = {"minItems": 1, "maxItems": settings.max_batch_records}
    seqs = {"minItems": 1, "maxItems": settings.max_claim}
    topic = {"pattern": TOPIC_NAME}
    key = {"minLength": 1, "maxLength": KEY_CHARS_MAX}
    watched = {"maxProperties": settings.max_watch_topics, "propertyNames": topic}
    return {
        "match": match,
        "filter": match,
        **{f"{name}.records": records for name in ("Write", "Publish")},
        "RecordIn.tag": {"maxLength": settings.max_tag_bytes},
        "RecordIn.node": node,
        "Write.node": node,
        "Publish.node": node,
        "RecordIn.meta": {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": META_KEYS_MAX},
                {"type": "null"},
            ]
        },
        "idempotency_key": key,
        "producer_id": key,
        "ClaimJobs.max": {"minimum": 1},
        **{f"{name}.node": worker for name in ("ClaimJobs", "AckJobs", "NackJobs", "ExtendJobs")},
        **{f"{name}.seqs": seqs for name in ("AckJobs", "NackJobs", "ExtendJobs")},
        "RedriveJobs.seqs": {"maxItems": settings.max_claim},
        **{f"PutRouter.{name}": topic for name in ("source", "dest")},
        "ConfigPatch.dead_letter": topic,
        "Publish.topic": topic,
        "WatchRequest.topics": watched,
        "Subscribe.topics": watched,
    }
