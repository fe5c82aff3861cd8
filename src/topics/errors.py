"""Every way a request can fail, as one family of exceptions.

The class carries the stable `code` and the HTTP `status` (HTTP-10); its docstring is the default message. A message
says what was wrong, with the value and the limit, and what to do next; `detail` repeats it for machines. Clients branch
on `code` and never parse `message`.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Final

RETRY_AFTER_MS: Final = 1000
"""When to come back where nothing better is known."""


class TopicsError(Exception):
    """The request failed."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    request_id: str | None = None
    """What the server's log calls the request. In the server: where the log has a line about it already."""

    def __init__(self, message: str | None = None, *, retry_after_ms: int | None = None, **detail: Any) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "").split("\n")[0]
        self.detail = detail
        self.retry_after_ms = retry_after_ms
        super().__init__(self.message)


class InvalidRequest(TopicsError):
    """The request is malformed."""

    code = "invalid_request"
    status = 400


class BatchTooLarge(InvalidRequest):
    """The request has more items than one call may have."""

    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    """A record is larger than the server accepts."""

    code = "record_too_large"


class Unauthorized(TopicsError):
    """A valid key is needed: send `Authorization: Bearer <key>`."""

    code = "unauthorized"
    status = 401


class Forbidden(TopicsError):
    """The key may not do this."""

    code = "forbidden"
    status = 403


class NotFound(TopicsError):
    """There is nothing at this address."""

    code = "not_found"
    status = 404


class TopicNotFound(NotFound):
    """The topic does not exist."""

    code = "topic_not_found"


class RouterNotFound(NotFound):
    """The router does not exist."""

    code = "router_not_found"


class BackupNotFound(NotFound):
    """This backup is not under way: it was ended, its lease ran out, or the server was restarted; begin a new one."""

    code = "backup_not_found"


class MethodNotAllowed(TopicsError):
    """This address does not accept this method."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(TopicsError):
    """This stream is served as text/event-stream only."""

    code = "not_acceptable"
    status = 406


class RequestTimeout(TopicsError):
    """The request did not arrive in time."""

    code = "request_timeout"
    status = 408


class Conflict(TopicsError):
    """The request conflicts with what is there."""

    code = "conflict"
    status = 409


class TopicExistsIncompatible(Conflict):
    """The topic exists and cannot be changed in this way."""

    code = "topic_exists_incompatible"


class TopicNotEmpty(Conflict):
    """The topic still holds records."""

    code = "topic_not_empty"


class RouterCycle(Conflict):
    """The router would close a cycle; set allow_cycle to permit it."""

    code = "router_cycle"


class NotAQueue(Conflict):
    """The topic is not a queue."""

    code = "not_a_queue"


class HeadMismatch(Conflict):
    """The topic's head is not the expected one; nothing was appended."""

    code = "head_mismatch"


class BackupRunning(Conflict):
    """Another backup is under way."""

    code = "backup_running"


class PayloadTooLarge(TopicsError):
    """The body exceeds the server's limit."""

    code = "payload_too_large"
    status = 413


class MisdirectedRequest(TopicsError):
    """The request names a host that this server does not go by."""

    code = "misdirected_request"
    status = 421


class UnsupportedMediaType(TopicsError):
    """The body must be sent as application/json."""

    code = "unsupported_media_type"
    status = 415


class ExpectationFailed(TopicsError):
    """The only expectation that this server supports is 100-continue."""

    code = "expectation_failed"
    status = 417


class TopicFull(TopicsError):
    """The topic is full and refuses new records until some are removed."""

    code = "topic_full"
    status = 422


class Throttled(TopicsError):
    """The server is at a limit; retry later."""

    code = "throttled"
    status = 429


class HeadTooLarge(TopicsError):
    """The request head exceeds the server's limit."""

    code = "head_too_large"
    status = 431


class Internal(TopicsError):
    """Something went wrong inside the server."""


class NotReady(TopicsError):
    """The server is still replaying its log."""

    code = "not_ready"
    status = 503


class ShuttingDown(TopicsError):
    """The server is shutting down."""

    code = "shutting_down"
    status = 503


class StorageReadOnly(TopicsError):
    """The storage failed and accepts no writes until a restart."""

    code = "storage_read_only"
    status = 503


class BackupUnavailable(TopicsError):
    """The checkpoint for a backup could not be written."""

    code = "backup_unavailable"
    status = 503


class StorageFull(TopicsError):
    """The disk is nearly full: free some space, or delete records or topics."""

    code = "storage_full"
    status = 503


class StorageUnreadable(TopicsError):
    """The disk that holds these records cannot be read right now."""

    code = "storage_unreadable"
    status = 503


class ColdUnavailable(StorageUnreadable):
    """The cold store that holds these records cannot be read right now."""

    code = "cold_unavailable"
    status = 503
