"""What an editor tells a handler's author: mypy and pyright accept what fits, and refuse each mistake on its line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TYPED = Path(__file__).parents[1] / "support" / "typed"


NAMES = "fits.py", "misfits.py"


def mypy(folder: Path, kept: Path) -> set[tuple[str, int]]:
    """The files and lines on which mypy --strict finds errors."""
    # Files that each process replaces as a whole: others may use them at the same time.
    options = ["--strict", "--no-error-summary", "--config-file=", f"--cache-dir={kept}", "--no-sqlite-cache"]
    done = run(folder, "mypy", *options)
    return {(name, int(line)) for name, line in re.findall(r"^(\w+\.py):(\d+): error", done, re.MULTILINE)}


def pyright(folder: Path, _: Path) -> set[tuple[str, int]]:
    """Those on which pyright does: basedpyright, which is it with Node.js in a wheel."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    done = run(folder, "basedpyright", "--level", "error", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(done)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, *NAMES], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_refuses_every_mistake_and_nothing_else(
    checker: Callable[[Path, Path], set[tuple[str, int]]], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    refused = set()
    for name in NAMES:
        text = (TYPED / name).read_text()
        (tmp_path / name).write_text(text)
        lines = enumerate(text.splitlines(), 1)
        refused |= {(name, number) for number, line in lines if line.endswith("# refused")}
    assert {name for name, _ in refused} == {"misfits.py"}
    # What mypy knows of our packages and those below us outlives the test: it takes it ten seconds to find out.
    assert checker(tmp_path, pytestconfig.rootpath / ".pytest_cache" / "mypy") == refused
