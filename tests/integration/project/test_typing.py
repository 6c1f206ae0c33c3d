"""What an editor tells a handler's author: mypy and pyright refuse each mistake on its line, and nothing that fits.

`credhook new` writes what fits, too.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.process.commands import invoke

TYPED, EXAMPLES = (ROOT / "tests" / name for name in ("support/typed", "examples"))


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
        [sys.executable, "-m", *command, *(path.name for path in folder.glob("*.py"))],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_refuses_every_mistake_and_nothing_else(
    checker: Callable[[Path, Path], set[tuple[str, int]]], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert invoke("new", "accounts", environment={}, folder=tmp_path).returncode == 0
    examples = [EXAMPLES / name / f"{name}.py" for name in ("onboarding", "notify", "billing")]
    for path in [*TYPED.glob("*.py"), *(tmp_path / "accounts").glob("*.py"), *examples]:
        shutil.copy(path, tmp_path)
    lines = enumerate((TYPED / "misfits.py").read_text().splitlines(), 1)
    refused = {("misfits.py", number) for number, line in lines if line.endswith("# refused")}
    assert refused
    # What mypy knows of our packages and those below us outlives the test: it takes it ten seconds to find out.
    assert checker(tmp_path, pytestconfig.rootpath / ".pytest_cache" / "mypy") == refused
