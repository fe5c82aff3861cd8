"""Everything on one machine: a server, sample events, an archive, a transform, a replay, a report.

`make demo` runs this. It leaves everything in one directory and prints what is where.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from topics.cli import app
from topics.testing import ServerProcess

SQL = """SELECT get_json_object(data, '$.page') AS page, count(*) AS visits, approx_count_distinct(tag) AS users
FROM clicks GROUP BY get_json_object(data, '$.page')
"""
PAGES = ("/", "/search", "/item", "/buy")
EVENTS = 2_000


def say(text: str) -> None:
    """A heading."""
    print(f"\n== {text}", flush=True)


def pipeline(url: str, *arguments: str) -> None:
    """Run a pipeline as on the command line, but in this process, so that only one JVM is started."""
    print(f"$ topics pipeline {' '.join(arguments)}", flush=True)
    ended = app(["pipeline", *arguments, "--url", url], standalone_mode=False)
    if ended:
        sys.exit(ended)


def send(server: ServerProcess, method: str, path: str, body: object) -> None:
    """A request that must succeed."""
    answer = server.request(method, path, json=body)
    if answer.status not in (200, 201):
        sys.exit(f"{method} {path}: {answer.body.decode()}")


def events(server: ServerProcess) -> None:
    """Two topics: one that keeps everything, and one that keeps too little, so that there is something to lose."""
    choose = random.Random(7)
    send(server, "PUT", "/v0/topics/sensors", {"cap_records": 100})
    for _ in range(EVENTS // 100):
        clicks = [
            {
                "data": {"page": choose.choice(PAGES), "ms": choose.randint(5, 900)},
                "tag": f"user:{choose.randint(1, 40)}",
            }
            for _ in range(100)
        ]
        send(server, "POST", "/v0/topics/clicks", {"records": clicks})
        readings = [{"data": {"celsius": round(choose.gauss(21, 2), 1)}, "node": "roof"} for _ in range(10)]
        send(server, "POST", "/v0/topics/sensors", {"records": readings})


def main() -> None:
    """Run it all."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="topics-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    sql = root / "pages.sql"
    sql.write_text(SQL)
    started = time.monotonic()
    with ServerProcess(root / "data") as server:
        say(f"a server at {server.url}, {EVENTS} clicks and some sensor readings, of which it keeps 100")
        events(server)
        say("archive: both topics into Delta tables, their JSON as columns, and what was lost into a table of its own")
        lake = str(root / "lake")
        topics = ("--topic", "clicks", "--topic", "sensors")
        pipeline(server.url, "archive", *topics, "--to", lake, "--typed", "--once", "--compact")
        say("transform: SQL over the clicks, its rows as records of the topic pages")
        arguments = ("--topic", "clicks", "--sql", str(sql), "--to", "pages", "--mode", "complete")
        pipeline(server.url, "transform", *arguments, "--checkpoint", str(root / "state" / "pages"), "--once")
        say("replay: the visits to /buy out of the archive into the topic buys")
        arguments = ("--from", lake, "--topic", "clicks", "--to", "buys", "--name", "buys")
        where = "get_json_object(data, '$.page') = '/buy'"
        pipeline(server.url, "replay", *arguments, "--state", str(root / "state" / "replay"), "--where", where)
        say("report: a page about the archive, its lag and its losses")
        pipeline(server.url, "report", "--from", lake, "--to", str(root / "report.html"))
        say("what came back")
        pages = server.request("POST", "/v0/topics/pages/diff", json={}).json["records"]
        for record in pages:
            print("  pages ", json.dumps(record["data"]))
        buys = server.request("GET", "/v0/topics/buys").json
        first = server.request("POST", "/v0/topics/buys/diff", json={"limit": 1}).json["records"][0]
        print(f"  buys   {buys['count']} records, the first with meta {json.dumps(first['meta'])}")
    _tables(root / "lake")
    say(f"done in {time.monotonic() - started:.0f} s; look at {root}")
    print("  report.html: open it in a browser")
    print("  lake/events, lake/losses, lake/typed/clicks, lake/typed/sensors: Delta tables")
    print("  data: the server's directory; state: what pipelines remember")


def _tables(lake: Path) -> None:
    from deltalake import DeltaTable

    rows = DeltaTable(str(lake / "events")).to_pyarrow_table(columns=["topic", "seq"])
    print(f"  lake/events holds {rows.num_rows} records")
    slow = DeltaTable(str(lake / "typed" / "clicks")).to_pyarrow_table(columns=["page", "ms"]).sort_by("ms").to_pylist()
    print(f"  lake/typed/clicks: the slowest page was {slow[-1]['page']} with {slow[-1]['ms']} ms")
    for loss in DeltaTable(str(lake / "losses")).to_pyarrow_table().to_pylist():
        print(f"  lake/losses: {loss['topic']} lost {loss['gap_from']} to {loss['gap_to']} ({loss['reason']})")


if __name__ == "__main__":
    main()
    # Everything is written and closed. Threads of deltalake and pyarrow may still run while the interpreter goes down,
    # and then, now and again, it aborts.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
