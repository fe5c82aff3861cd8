"""`docs/settings.md` says what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_document_is_what_the_table_renders_to() -> None:
    """Run `.venv/bin/python tools/settings_doc.py` after a change of the settings."""
    spec = importlib.util.spec_from_file_location("settings_doc", ROOT / "tools" / "settings_doc.py")
    assert spec is not None
    assert spec.loader is not None
    settings_doc = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settings_doc)

    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_doc.render()
