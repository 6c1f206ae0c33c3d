"""A project for `credhook dev`."""

from pathlib import Path

import pytest

from support.process.dev_process import MODULE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of an author's: a folder with one module."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "accounts.py").write_text(MODULE)
    return made
