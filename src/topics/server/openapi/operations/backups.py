"""The operations of an online backup."""

from __future__ import annotations

from typing import Final

from topics.errors import (
    BackupNotFound,
    BackupRunning,
    BackupUnavailable,
    BatchTooLarge,
    ColdUnavailable,
    StorageReadOnly,
    StorageUnreadable,
)
from topics.server.api.backups import PIECE_BYTES, Described
from topics.server.api.shapes import BackupBegun, BackupEnded, BackupMoment, BackupSegments
from topics.server.openapi.operation import Answer, Operation, Parameter, whole

GROUP: Final = "Backups"
_TIMES: Final = {"server_total_ms": 0.041}
_SNAPSHOT: Final = {"file": "snapshots/00000000000000000002.snap", "bytes": 4096}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v0/backup"): Operation(
        id="beginBackup",
        group=GROUP,
        summary="Begin a backup",
        text="Makes a checkpoint; from then on no file that it lists is removed until the backup ends. There is one "
        "backup at a time, and only for a key that is not limited to prefixes.",
        answers={
            201: (
                Answer(
                    "The checkpoint is made.",
                    BackupBegun,
                    {"backup": "9f86d081884c7d65", "lease_ms": 30000, "snapshot": _SNAPSHOT, "performance": _TIMES},
                ),
            )
        },
        errors=(BackupRunning, BackupUnavailable, StorageReadOnly),
    ),
    ("GET", "/v0/backup/:backup"): Operation(
        id="readBackup",
        group=GROUP,
        summary="Some bytes of a file of the backup",
        parameters=(
            Parameter("file", "The snapshot, a file of a segment, or a file of the log.", {"type": "string"}),
            Parameter("offset", "Where to begin.", whole(default=0)),
            Parameter("bytes", f"How many, at most {PIECE_BYTES}.", whole(least=1, default=PIECE_BYTES)),
        ),
        answers={
            200: (
                Answer(
                    "The bytes; fewer at the end of the file.",
                    content_type="application/octet-stream",
                    schema={"type": "string", "format": "binary"},
                ),
            )
        },
        errors=(BackupNotFound, BackupUnavailable, ColdUnavailable, StorageUnreadable),
    ),
    ("POST", "/v0/backup/:backup/segments"): Operation(
        id="describeSegments",
        group=GROUP,
        summary="What is known of some segments",
        text="So that a program copies only segments that it does not have.",
        body=Described,
        example={"segments": []},
        answers={200: (Answer("The segments, in order.", BackupSegments, {"segments": [], "performance": _TIMES}),)},
        errors=(BackupNotFound, BackupUnavailable, BatchTooLarge, ColdUnavailable, StorageUnreadable),
    ),
    ("POST", "/v0/backup/:backup/moment"): Operation(
        id="takeMoment",
        group=GROUP,
        summary="Let the log up to now belong to the backup",
        answers={
            200: (
                Answer(
                    "The moment of the backup.",
                    BackupMoment,
                    {
                        "ts": 1767225600000,
                        "lsn": 42,
                        "boot_id": "3f1c",
                        "wal": [{"file": "wal/0-00000001-00000001.wal", "bytes": 8192}],
                        "performance": _TIMES,
                    },
                ),
            )
        },
        errors=(BackupNotFound, BackupUnavailable, StorageReadOnly),
    ),
    ("DELETE", "/v0/backup/:backup"): Operation(
        id="endBackup",
        group=GROUP,
        summary="End a backup",
        text="Its files are removed when nothing else needs them.",
        answers={
            200: (
                Answer(
                    "It has ended.", BackupEnded, {"backup": "9f86d081884c7d65", "ended": True, "performance": _TIMES}
                ),
            )
        },
        errors=(BackupNotFound, BackupUnavailable),
    ),
}
