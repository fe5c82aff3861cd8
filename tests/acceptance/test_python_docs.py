"""Every Python block of docs/python.md runs as it stands, in order, against one server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from topics.testing import ServerProcess

DOC = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    """PROOF-4."""
    assert len(BLOCKS) >= 8
    with ServerProcess() as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        for number, block in enumerate(BLOCKS, 1):
            ran = subprocess.run(
                [sys.executable, "-W", "error", "-c", block],
                cwd=tmp_path,
                env={**kept, "TOPICS_URL": server.url},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert ran.returncode == 0, f"block {number}:\n{block}\n{ran.stderr}"
            assert "Warning" not in ran.stderr, f"block {number}:\n{ran.stderr}"
