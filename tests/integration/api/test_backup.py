"""The routes of a backup: who may use them, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.testing import ServerProcess

KEYS = "all-secret,read-secret:r,part-secret:r+w+d+a:shop."


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    with ServerProcess(api_keys=KEYS) as server:
        yield server


def test_backup_needs_a_key_for_everything(guarded: ServerProcess) -> None:
    """BACKUP-2: the scopes read and admin, and no prefixes; one at a time, and only what belongs to it is read."""

    def call(method: str, path: str, key: str = "all-secret", **rest: object) -> tuple[int, str]:
        answer = guarded.request(method, f"/v0/backup{path}", headers={"Authorization": f"Bearer {key}"}, **rest)  # type: ignore[arg-type]
        error = {} if answer.json is None else answer.json.get("error", {})
        return answer.status, error.get("code", "")

    headers = {"Authorization": "Bearer all-secret"}
    assert call("POST", "", "read-secret") == (403, "forbidden")
    assert call("POST", "", "part-secret") == (403, "forbidden")
    assert call("POST", "", "none") == (401, "unauthorized")
    begun = guarded.request("POST", "/v0/backup", headers=headers)
    assert begun.status == 201
    id = begun.json["backup"]
    assert call("POST", "") == (409, "backup_running")
    for key in ("read-secret", "part-secret"):
        assert call("GET", f"/{id}?file={begun.json['snapshot']['file']}", key) == (403, "forbidden")
    snapshot = guarded.request("GET", f"/v0/backup/{id}?file={begun.json['snapshot']['file']}", headers=headers)
    assert (snapshot.status, snapshot.body[:8]) == (200, b"TOPICSNP")
    assert len(snapshot.body) == begun.json["snapshot"]["bytes"]
    for file in (
        "LOCK",
        "wal/../LAYOUT",
        "../../etc/passwd",
        "segments/../LAYOUT",
        "",
        "wal/00000001-0000-00000001.wal",
    ):
        assert call("GET", f"/{id}?file={file}") == (400, "invalid_request"), file
    assert call("POST", f"/{id}/segments", json={"segments": ["x"] * 300}) == (400, "batch_too_large")
    assert call("POST", f"/{id}/segments", json={"segments": ["../x"]}) == (400, "invalid_request")
    moment = guarded.request("POST", f"/v0/backup/{id}/moment", headers=headers).json
    [log] = moment["wal"]
    content = guarded.request("GET", f"/v0/backup/{id}?file={log['file']}&bytes=99999999", headers=headers).body
    assert len(content) == log["bytes"]
    assert call("DELETE", "/other") == (404, "backup_not_found")
    assert call("DELETE", f"/{id}") == (200, "")
    for method, path in (("GET", f"/{id}?file=LAYOUT"), ("POST", f"/{id}/moment"), ("DELETE", f"/{id}")):
        assert call(method, path) == (404, "backup_not_found")
    assert call("POST", "") == (201, "")
