"""What an editor tells a handler's author: mypy and pyright accept what fits, and refuse each mistake on its line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).parents[1] / "support" / "typed"


def mypy(path: Path) -> set[int]:
    """The lines on which mypy --strict finds errors."""
    options = ["--strict", "--no-error-summary", "--config-file=", f"--cache-dir={path.parent / '.mypy_cache'}"]
    command = [sys.executable, "-m", "mypy", *options, path.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    assert done.returncode in {0, 1}, done.stderr
    return {int(line) for line in re.findall(rf"^{path.name}:(\d+): error", done.stdout, re.MULTILINE)}


def pyright(path: Path) -> set[int]:
    """The lines on which pyright finds errors: basedpyright, which is it with Node.js in a wheel."""
    options = ["--level", "error", "--outputjson", "--pythonpath", sys.executable]
    command = [sys.executable, "-m", "basedpyright", *options, path.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found}


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("name", ["fits.py", "misfits.py"])
def test_a_type_checker_refuses_every_mistake_and_nothing_else(checker: object, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = (TYPED / name).read_text()
    path.write_text(text)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    refused = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")}
    assert bool(refused) == (name == "misfits.py")
    assert callable(checker)
    assert checker(path) == refused
