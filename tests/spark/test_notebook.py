"""The notebook of the examples, run cell by cell against a real server."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from topics.testing import ServerProcess

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "tools" / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_shows_what_its_cells_give(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK-40: after a change run `.venv/bin/python tools/notebook.py`; a second run of every cell changes nothing."""
    tool = load()
    notebook = json.loads(tool.NOTEBOOK.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setenv("TOPICS_URL", server.url)
        outputs = tool.run(notebook)
        again = tool.run(notebook)
        count = server.request("GET", "/v0/topics/visits").json["count"]
    kept = [
        [{key: value for key, value in output.items() if key != "execution_count"} for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    assert outputs == kept
    assert again[1:] == outputs[1:]
    chart = next(output["data"]["image/svg+xml"] for cell in outputs for output in cell if "data" in output)
    bars = ElementTree.fromstring("".join(chart)).findall("{http://www.w3.org/2000/svg}rect/*")
    shown = [int((title.text or "").split()[-2]) for title in bars]
    assert (len(shown), sum(shown)) == (24, count)
