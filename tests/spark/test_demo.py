"""`make demo` runs the whole story and says where to look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_the_demo_archives_transforms_and_replays(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(DEMO), str(tmp_path)], capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout[-2000:]
    assert "lake/events holds 2100 records" in ran.stdout
    assert "lake/losses: sensors lost 1 to 100 (cap)" in ran.stdout
    pages = [line for line in ran.stdout.splitlines() if line.startswith("  pages ")]
    assert len(pages) == 4
    assert '"replayed_topic": "clicks"' in ran.stdout
    assert "lake/typed/clicks: the slowest page was /" in ran.stdout
    assert "<title>Archive report</title>" in (tmp_path / "report.html").read_text()
    assert f"look at {tmp_path}" in ran.stdout
