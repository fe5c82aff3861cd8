"""A file of flows: what it may hold, and what is said of one that is wrong (PIPELINE-20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")

from topics.pipeline.errors import PipelineError
from topics.pipeline.flows.flows import Flows, read
from topics.pipeline.flows.secrets import Secrets

WHOLE = """
server:
  url: http://127.0.0.1:4000
  token: ${SHOP_KEY}
spark:
  master: local[4]
  conf: {spark.sql.shuffle.partitions: 8, spark.ui.enabled: false}
restart: {first: 2 seconds, most: 1 minute, calm: 10 minutes}
flows:
  orders-lake:
    kind: archive
    topics: [orders, refunds]
    to: lake
    typed: true
    max_offsets: 5000
  shop-lake:
    kind: archive
    prefix: shop.
    to: s3://${BUCKET:-company}/lake
    server: {token: "${OTHER_KEY}"}
  per-page:
    kind: transform
    topics: clicks
    to: clicks-per-page
    checkpoint: state/per-page
    sql_file: per_page.sql
    mode: update
"""
ENVIRON = {"SHOP_KEY": "the-key-of-the-shop", "OTHER_KEY": "another-key", "TOPICS_PROFILES": "/none"}


@pytest.fixture
def given(tmp_path: Path) -> Any:
    """What a file with this text asks for."""

    def given(text: str, **environ: str) -> Flows:
        file = tmp_path / "pipelines.yml"
        file.write_text(text)
        (tmp_path / "per_page.sql").write_text("SELECT 1")
        return read(file, {**ENVIRON, **environ}, Secrets({}))

    return given


def problems(given: Any, text: str, **environ: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        given(text, **environ)
    return [line.partition("pipelines.yml:")[2] for line in str(caught.value).splitlines()]


def test_a_file_says_what_runs_where(given: Any, tmp_path: Path) -> None:
    """PIPELINE-20: paths are below the directory of the file, and what a flow does not say is that of the file."""
    found = given(WHOLE)
    assert (found.master, found.conf["spark.ui.enabled"]) == ("local[4]", "false")
    assert found.conf["spark.sql.shuffle.partitions"] == "8"
    assert (found.restart.first_ms, found.restart.most_ms, found.restart.calm_ms) == (2_000, 60_000, 600_000)
    orders, shop, pages = found.flows
    assert (orders.name, orders.kind, orders.topic, orders.topics) == (
        "orders-lake", "archive", "orders, refunds", ("orders", "refunds"),
    )  # fmt: skip
    assert orders.server == found.server
    assert (found.server.url, found.server.token) == ("http://127.0.0.1:4000", "the-key-of-the-shop")
    assert (shop.topic, shop.server.url, shop.server.token) == ("shop.*", "http://127.0.0.1:4000", "another-key")
    assert (orders.checkpoint, shop.checkpoint) == (tmp_path / "lake" / "_checkpoint", None)
    assert pages.checkpoint == tmp_path / "state" / "per-page"
    pytest.importorskip("deltalake")
    pytest.importorskip("pyspark")
    archive, remote, transform = orders.make(), shop.make(), pages.make()
    assert archive.source == {
        "url": "http://127.0.0.1:4000", "token": "the-key-of-the-shop", "topics": "orders,refunds",
    }  # fmt: skip
    assert (archive.root.path, archive.typed, archive.offsets_max) == (tmp_path / "lake", True, 5_000)
    assert (str(remote.root), remote.source["topicPrefix"]) == ("s3://company/lake", "shop.")
    assert (transform.sql, transform.mode, transform.target) == ("SELECT 1", "update", "clicks-per-page")
    assert orders.make() is not archive, "each start has a pipeline of its own"


ARCHIVE = "flows:\n  a:\n    kind: archive\n    topics: t\n    to: lake\n"
TRANSFORM = "flows:\n  a:\n    kind: transform\n    topics: t\n    to: out\n    checkpoint: c\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file is empty; it must be a mapping"),
        ("flows: {}", "1: flows is a mapping; it must be a mapping of names to flows"),
        ("flows: 7", '1: flows is "7"; it must be a mapping of names to flows'),
        ("flows: [", "1: this is not YAML: expected the node content, but found '<stream end>'"),
        (ARCHIVE + "flow: {}", "6: flow: there is no such key; did you mean flows?"),
        (ARCHIVE + "    kind: archive", "6: flows.a.kind is there twice, for the first time on line 3"),
        (ARCHIVE + "    max_ofsets: 5", "6: flows.a.max_ofsets: there is no such key; did you mean max_offsets?"),
        (ARCHIVE + "    xyz: 5", "6: flows.a.xyz: there is no such key; there are catalog, checkpoint,"),
        (ARCHIVE + "    max_offsets: 0", '6: flows.a.max_offsets is "0"; it must be a whole number of at least 1'),
        (ARCHIVE + "    typed: maybe", '6: flows.a.typed is "maybe"; it must be true or false'),
        (ARCHIVE + "    format: csv", '6: flows.a.format is "csv"; it must be delta, iceberg or parquet'),
        (ARCHIVE + "    interval: soon", '6: flows.a.interval is "soon"; it must be a span of time such as'),
        (ARCHIVE + "    prefix: p", "2: flows.a: say what to archive, with topics or with prefix"),
        (ARCHIVE.replace("to: lake", "to: ftp://x/y"), '5: flows.a.to: "ftp://x/y" is no place for a lake; name a'),
        (ARCHIVE.replace("to: lake", "format: delta"), "2: flows.a has no key to; it must be text"),
        (ARCHIVE.replace("topics: t", "topics: [t, a b]"), '4: flows.a.topics[2]: "a b" is not a topic name'),
        (ARCHIVE.replace("topics: t", "topics: []"), "4: flows.a.topics is empty; it must name a topic"),
        (ARCHIVE.replace("archive", "archiv"), '3: flows.a.kind is "archiv"; it must be archive or transform'),
        (ARCHIVE.replace("kind: archive", "typed: true"), "2: flows.a.kind is missing; it must be archive or"),
        (ARCHIVE + "    format: parquet\n    typed: true", "7: flows.a.typed needs the format delta"),
        (ARCHIVE + "    catalog: c", "6: flows.a.catalog needs the format iceberg"),
        (ARCHIVE + "  b: {kind: archive, topics: u, to: lake}", "6: flows.b has its state in "),
        (ARCHIVE.replace(" a:", " a b:"), '2: flows: "a b" is no name'),
        (ARCHIVE + "server: {profile: none}", "6: server: "),
        (ARCHIVE + "restart: {first: 1 hour}", "6: restart.most is less than restart.first"),
        (TRANSFORM, "2: flows.a: say what to select, with sql or with sql_file"),
        (TRANSFORM + "    sql_file: none.sql", "7: flows.a.sql_file none.sql: No such file or directory"),
        (
            TRANSFORM + "    sql: ${NOT_SET}",
            "7: flows.a.sql needs the variable NOT_SET of the environment, which is not set: set it, leave this key",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(given: Any, text: str, expected: str) -> None:
    """PIPELINE-20: the line, the path, the value and what is allowed."""
    [found] = problems(given, text)
    assert found.startswith(expected)


def test_everything_that_is_wrong_is_said_at_once(given: Any) -> None:
    """PIPELINE-20."""
    text = ARCHIVE + "    typed: 7\n    intervall: 1 second\n  b: {kind: archive}\nspark: {master: 3}\n"
    assert problems(given, text) == [
        '6: flows.a.typed is "7"; it must be true or false',
        "7: flows.a.intervall: there is no such key; did you mean interval?",
        "8: flows.b has no key to; it must be text",
        '9: spark.master is "3"; it must be text',
    ]


def test_a_key_comes_from_the_environment_and_is_in_no_message(given: Any) -> None:
    """PIPELINE-20: a key in the file is refused, and its text is not shown."""
    [found] = problems(given, ARCHIVE + "server: {token: very-secret}")
    assert found.startswith("6: server.token: a key does not belong into a file; name a variable")
    assert "very-secret" not in found
    [found] = problems(given, ARCHIVE + "server: {token: [very-secret]}")
    assert "very-secret" not in found
    [found] = problems(given, ARCHIVE.replace("lake", "ftp://${PLACE}"), PLACE="very-secret")
    secrets = Secrets({})
    secrets.add("PLACE", "very-secret")
    assert "very-secret" not in secrets.hidden(found)


def test_a_dollar_can_be_written(given: Any) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("deltalake")
    [flow] = given(TRANSFORM + "    sql: SELECT '$${x}', '${A:-b c}', '$1'").flows
    assert flow.make().sql == "SELECT '${x}', 'b c', '$1'"


def test_a_file_has_bounds(given: Any, tmp_path: Path) -> None:
    """PIPELINE-20: of its size, its values and its flows; a name that refers to itself ends too."""
    with pytest.raises(PipelineError, match="larger than"):
        given("# " + "x" * (1 << 20))
    with pytest.raises(PipelineError, match="not YAML"):
        given("flows: &a {a: *a}")
    [found] = problems(
        given, "flows:\n" + "".join(f"  f{n}: {{kind: archive, topics: t, to: l{n}}}\n" for n in range(101))
    )
    assert found == "1: flows has 101 flows; one application runs at most 100"
    with pytest.raises(PipelineError, match=r"none\.yml: No such file"):
        read(tmp_path / "none.yml", {}, Secrets({}))


def test_secrets_are_in_no_text() -> None:
    """PIPELINE-23: what the environment calls a secret, keys, and what an address holds before its host."""
    secrets = Secrets({"AWS_SECRET_ACCESS_KEY": "abcd/efgh", "HOME": "/home/me", "SHORT_TOKEN": "x"})
    secrets.add("the key of the server", "abcd/efgh/long")
    text = "abcd/efgh/long abcd/efgh /home/me x http://me:pass@host/ Authorization: Bearer qwerty"
    assert secrets.hidden(text) == (
        "<the key of the server> <AWS_SECRET_ACCESS_KEY> /home/me x http://<name>:<password>@host/ "
        "Authorization: Bearer <key>"
    )
