"""Every version of PySpark that the source runs on, each in a plain session of its own, and one that it refuses.

`make test` runs the oldest one, `make test-spark-versions` all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from tests.harness.api import Api
from tests.harness.spark import records
from topics.pipeline.cli import app
from topics.spark import version
from topics.spark.errors import SourceError
from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = os.environ.get("TOPICS_SPARK_VERSIONS", "4.1").split()
OWN = ".".join(pyspark.__version__.split(".")[:2])
RECORDS = 1000


def environment(spark: str, scratch: Path) -> dict[str, str]:
    """With this version of PySpark, and a `python3` on the PATH that knows nothing of topics."""
    plain = scratch / "bin"
    plain.mkdir()
    (plain / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    paths = [str(ROOT)]
    if spark != OWN:
        installed = ROOT / ".cache" / f"spark-{spark}"
        if not (installed / "pyspark").is_dir():
            pytest.skip(f"run tools/ensure-spark {spark} first, as make test does")
        paths.insert(0, str(installed))
    return {**environ, "PATH": f"{plain}:{environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("spark_version", VERSIONS)
def test_a_plain_session_of_each_version_reads_streams_writes_and_archives(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path, spark_version: str
) -> None:
    """SPARK-27: in particular, a query that runs once ends where the topic ends, or does not start."""
    api.write(topic_name, *({"data": {"n": n}} for n in range(1, RECORDS + 1)))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.version_job", server.url, topic_name, str(tmp_path / "scratch")],
        env=environment(spark_version, tmp_path),
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "DATA_SOURCE_NOT_FOUND" in found["unregistered"]
    if spark_version == "4.0":
        assert "topics needs PySpark 4.1 or later, and this is PySpark 4.0." in found["refusal"]
        assert "Traceback" not in found["refusal"]
        return
    assert found["table"] == RECORDS
    assert "Traceback" not in found["unknown"]
    assert 'topic "no-such-topic" (options "topic", "topics") does not exist' in found["unknown"]
    everything = list(range(1, RECORDS + 1))
    if spark_version == "4.1":
        assert 'option "maxOffsetsPerTrigger" is "300": it needs Spark 4.2 or later' in found["limited"]
    else:
        assert [len(batch) for batch in found["batches"]] == [300, 300, 300, 100]
        assert list(chain(*found["batches"])) == everything
    assert list(chain(*found["unlimited"])) == everything
    assert found["again"] == []
    assert [record["data"]["n"] for record in records(api, f"{topic_name}.copy")] == everything
    assert found["archived"] == {"events": RECORDS, "typed": RECORDS}
    assert found["unified"] == {"table": everything, "stream": everything}


def test_an_older_version_is_refused_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK-27."""
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(SourceError) as refused:
        version.check()
    assert str(refused.value) == "topics needs PySpark 4.1 or later, and this is PySpark 4.0.5"
    ended = CliRunner().invoke(app, ["archive", "--topic", "t", "--to", "lake"])
    assert (ended.exit_code, ended.stderr) == (1, f"topics pipeline: {refused.value}\n")
    monkeypatch.setattr(pyspark, "__version__", "4.1.0.dev2")
    version.check()
