"""The example project for Spark Declarative Pipelines, run as its README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.api import Api, StartServer
from tests.harness.spark import SETTINGS, records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def test_a_declarative_pipeline_keeps_a_table_a_view_and_a_topic(start_server: StartServer, tmp_path: Path) -> None:
    """PIPELINE-8: it reads topics, keeps a streaming table and a materialised view, and writes a sink topic."""
    import pyarrow.parquet as pq

    from topics.spark import java

    # Its topics have names of their own, which other tests may use too.
    server = start_server()
    api = Api(server.host, server.port)
    api.write(
        "orders",
        {"data": {"id": "o1", "product": "tea", "quantity": 2, "price": 4.5}},
        {"data": {"id": "o2", "product": "kettle", "quantity": 4, "price": 30}},
        {"data": {"id": "o3", "product": "tea", "quantity": 30, "price": 4}},
    )
    project = tmp_path / "shop"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("tables", "catalog"))
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    for shown, own in (("http://127.0.0.1:4000", server.url), ("file:///tmp/topics-shop", tmp_path.as_uri())):
        assert shown in text
        text = text.replace(shown, own)
    spec.write_text(text)
    with (project / "conf" / "spark-defaults.conf").open("a") as settings:
        settings.writelines(f"{name} {value}\n" for name, value in SETTINGS.items())
    home = java.find()
    environ = {**os.environ, "SPARK_CONF_DIR": "conf", "PYSPARK_PYTHON": sys.executable}
    # Spark's own switch for tests: the socket between pipeline and Spark gets a free port, not 15002.
    environ["SPARK_TESTING"] = "1"
    if home is not None:
        environ["JAVA_HOME"] = str(home)
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("spark-pipelines")), "run"],
        cwd=project, env=environ, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "Run is COMPLETED" in ran.stdout
    assert [(record["$tag"], record["data"]) for record in records(api, "large-orders")] == [
        ("kettle", {"id": "o2", "product": "kettle", "total": 120.0}),
        ("tea", {"id": "o3", "product": "tea", "total": 120.0}),
    ]
    orders = pq.read_table(project / "tables" / "orders").to_pylist()
    assert sorted((row["seq"], row["id"]) for row in orders) == [(1, "o1"), (2, "o2"), (3, "o3")]
    revenue = pq.read_table(project / "tables" / "revenue").to_pylist()
    assert sorted((row["product"], row["orders"], row["total"]) for row in revenue) == [
        ("kettle", 1, 120.0),
        ("tea", 2, 129.0),
    ]
    api.close()
