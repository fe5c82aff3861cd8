"""deploy/nginx.conf and deploy/Caddyfile, as they stand but for names and places, before a real server.

The proxies listen on Unix sockets, so that no test has to guess a free port; everything else is as a client meets it:
TLS with a certificate of its own, HTTP/2, a large body, a stream that is not held back, a WebSocket, a page.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.harness.api import DEADLINE_S, until
from tests.harness.client import CA, CERTIFICATES
from topics.testing import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "deploy"
CERTIFICATE = CERTIFICATES / "server.pem"
UNPACKED = ROOT / ".venv" / "proxies"
PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin", str(UNPACKED / "usr/sbin"), str(UNPACKED / "usr/bin")])


def edited(example: str, changes: dict[str, str]) -> str:
    """An example with these changes; each of them has to find something to change."""
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    for shown, here in changes.items():
        assert shown in text, f"{example} does not say {shown!r}"
        text = text.replace(shown, here)
    return text


def nginx(place: Path, server: ServerProcess) -> list[str]:
    site = place / "topics.conf"
    site.write_text(
        edited(
            "nginx.conf",
            {
                "    listen [::]:80;\n": "",
                "    listen [::]:443 ssl http2;\n": "",
                "listen 80;": f"listen unix:{place}/plain;",
                "listen 443 ssl": f"listen unix:{place}/tls ssl",
                "topics.example.com": "localhost",
                "/etc/ssl/topics/cert.pem": str(CERTIFICATE),
                "/etc/ssl/topics/key.pem": str(CERTIFICATE),
                "127.0.0.1:4000": f"{server.host}:{server.port}",
            },
        )
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    user = "user root;" if os.getuid() == 0 else ""
    main = place / "main.conf"
    main.write_text(
        f"{user} daemon off; worker_processes 1; pid {place}/pid; events {{}}"
        f" http {{ access_log off; {temporary} include {site}; }}"
    )
    return ["nginx", "-p", str(place), "-e", "stderr", "-c", str(main)]


def caddy(place: Path, server: ServerProcess) -> list[str]:
    config = place / "Caddyfile"
    config.write_text(
        "{\n\tadmin off\n\tauto_https off\n\tstorage file_system " + str(place / "kept") + "\n}\n"
        + edited(
            "Caddyfile",
            {
                "topics.example.com": "https://localhost",
                "# tls /etc/ssl/topics/cert.pem /etc/ssl/topics/key.pem": (
                    f"tls {CERTIFICATE} {CERTIFICATE}\n\tbind unix/{place}/tls"
                ),
                "127.0.0.1:4000": f"{server.host}:{server.port}",
            },
        )
    )  # fmt: skip
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)]


class Front:
    """A proxy that runs, as a client sees it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @property
    def trust(self) -> ssl.SSLContext:
        """Who may sign; a new one each time, because an HTTP client adds the protocols that it offers."""
        return ssl.create_default_context(cafile=str(CA))

    def client(self, door: str = "tls", **options: object) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.place / door), verify=self.trust, http2=True)
        scheme = "https" if door == "tls" else "http"
        return httpx.Client(transport=transport, base_url=f"{scheme}://localhost", timeout=DEADLINE_S, **options)  # type: ignore[arg-type]

    def dial(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(DEADLINE_S)
        try:
            line.connect(str(self.place / "tls"))
        except OSError:
            line.close()
            raise
        return line


@contextlib.contextmanager
def running(make: Callable[[Path, ServerProcess], list[str]], place: Path, server: ServerProcess) -> Iterator[Front]:
    program, *arguments = make(place, server)
    found = shutil.which(program, path=PLACES)
    if found is None:
        pytest.skip(f"{program} is not installed (tools/ensure-proxies)")
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [found, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(place), "XDG_DATA_HOME": str(place), "XDG_CONFIG_HOME": str(place)},
        )
    front = Front(place)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            front.dial().close()
            return True
        return False

    try:
        until(answers, f"{program} listens")
        yield front
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(params=[nginx, caddy], ids=lambda make: make.__name__, scope="module")
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    place = tmp_path_factory.mktemp("p")
    with ServerProcess() as server, running(request.param, place, server) as started:
        yield started


def test_requests_pass_over_tls_and_http2(front: Front, topic_name: str) -> None:
    """DEPLOY-4: also from the console, a page of the proxy's own origin, and with a body of several MiB."""
    large = {"records": [{"data": "x" * 50_000}] * 60}
    with front.client() as client:
        answer = client.post(f"/v0/topics/{topic_name}", json=large, headers={"Origin": "https://localhost"})
        assert (answer.status_code, answer.http_version) == (201, "HTTP/2"), answer.text
        assert client.post(f"/v0/topics/{topic_name}/diff", json={"limit": 1}).json()["head_seq"] == 60
        # A small one: a client that still sends may not look at a refusal that comes before the end of its body.
        small = {"records": [{"data": 1}]}
        foreign = client.post(f"/v0/topics/{topic_name}", json=small, headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
        assert "<html" in client.get("/").text


def test_a_stream_passes_as_it_is_written(front: Front, topic_name: str) -> None:
    """DEPLOY-4: what is written while the stream is open arrives, though the stream does not end."""
    with front.client() as reader, front.client() as writer:
        writer.post(f"/v0/topics/{topic_name}", json={"records": [{"data": 1}]})
        session = reader.post("/v0/watch", json={"topics": {topic_name: {"from_seq": 0}}}).json()
        with reader.stream("GET", session["stream_url"]) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            seen = []
            for line in stream.iter_lines():
                if line.startswith("data:") and '"records"' in line:
                    seen += [record["data"] for record in json.loads(line[5:])["records"]]
                    if len(seen) == 4:
                        break
                    writer.post(f"/v0/topics/{topic_name}", json={"records": [{"data": len(seen) + 1}]})
        assert seen == [1, 2, 3, 4]


def test_a_websocket_passes(front: Front, topic_name: str) -> None:
    """DEPLOY-4: publish and subscribe on one socket."""
    with connect("wss://localhost/v0/ws", sock=front.dial(), ssl=front.trust) as room:
        room.send(json.dumps({"op": "publish", "topic": topic_name, "records": [{"data": "hello"}]}))
        frames = [json.loads(room.recv(DEADLINE_S))]
        room.send(json.dumps({"op": "subscribe", "topic": topic_name}))
        frames += [json.loads(room.recv(DEADLINE_S)) for _ in range(2)]
    assert [frame["op"] for frame in frames] == ["ack", "subscribed", "record"]
    assert frames[2]["records"][0]["data"] == "hello"


def test_plain_http_leads_to_tls(front: Front) -> None:
    """DEPLOY-4: Caddy does this by itself on port 80, which no test takes."""
    if not (front.place / "plain").exists():
        return
    with front.client("plain") as client:
        answer = client.get("/v0/topics?limit=1")
    assert (answer.status_code, answer.headers["location"]) == (301, "https://localhost/v0/topics?limit=1")
