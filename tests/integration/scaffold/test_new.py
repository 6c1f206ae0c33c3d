"""`credhook new`: what it writes is tested as it stands, with no network and no Redis."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.process.commands import Done, invoke
from support.process.no_network import PYTEST, run


def new(folder: Path, name: str) -> Done:
    return invoke("new", name, environment={"PATH": os.environ["PATH"]}, folder=folder)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    written = new(tmp_path, "accounts")
    assert (written.returncode, written.stderr) == (0, "")
    assert "cd accounts && credhook dev" in written.stdout
    files = {".gitignore", "README.md", "accounts.py", "pyproject.toml", "test_accounts.py"}
    assert {path.name for path in (tmp_path / "accounts").iterdir()} == files
    project = (tmp_path / "accounts" / "pyproject.toml").read_text()
    assert 'dependencies = ["credhook"]' in project
    assert 'dev = ["credhook[local,testing]"' in project
    return tmp_path / "accounts"


def test_its_own_tests_pass_and_notice_a_handler_that_may_not_run_again(accounts: Path) -> None:
    assert "3 passed" in run(accounts, *PYTEST)
    module = accounts / "accounts.py"
    module.write_text(module.read_text().replace("INSERT OR IGNORE", "INSERT"))
    with pytest.raises(AssertionError, match="note_issuance cannot run again"):
        run(accounts, *PYTEST)


def test_its_handler_keeps_its_database_in_the_folder_that_systemd_gives(accounts: Path, tmp_path: Path) -> None:
    program = (
        "from accounts import note_issuance; from credhook.testing import event, run; "
        "print(run(note_issuance, event('openid4vc.issuance.completed')).outcome)"
    )
    state, current = tmp_path / "state", tmp_path / "read-only"
    state.mkdir()
    current.mkdir(mode=0o500)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(accounts), "STATE_DIRECTORY": str(state)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=current, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert ([path.name for path in state.iterdir()], [*current.iterdir()]) == (["accounts.db"], [])


@pytest.mark.parametrize(("name", "said"), [
    ("my-handlers", "such as my_handlers"), ("class", "not a name for a module"),
    ("../away", "not a name for a module"),
    ("ä", "not a name for a module"), ("accounts_", "not a name for a module"), ("json", "installed here"),
    ("time", "installed here"), ("a" * 65, "not a name for a module"),
])  # fmt: skip
def test_a_name_that_no_module_may_have_is_refused_in_one_line(tmp_path: Path, name: str, said: str) -> None:
    refused = new(tmp_path, name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_new_leaves_existing_files_alone(accounts: Path) -> None:
    (accounts / "accounts.py").write_text("mine")
    refused = new(accounts.parent, "accounts")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "exists already" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (accounts / "accounts.py").read_text() == "mine"
    nowhere = new(Path("/proc"), "accounts")
    said = "Error: accounts cannot be written here: No such file or directory\n"
    assert (nowhere.returncode, nowhere.stderr) == (1, said)
