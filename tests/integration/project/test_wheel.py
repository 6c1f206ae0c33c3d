"""What is installed: the wheel, beside a project whose own files have the names of our folders.

`make release` tries the archives, the locks and the ways of deploy/INSTALL.md.
"""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from credhook.cli import COMMANDS
from credhook.store.announcements import version
from support.checkout import ROOT
from support.platform.sandbox_api import USERS, authorized
from support.process.other_version import make_environment, site
from support.process.serving import Platform
from support.project import release

#: What a project may well have of its own. Whoever imports it instead of ours is told.
STRANGERS = ("worker", "receiver", "sandbox", "settings", "cli", "events", "logs", "store", "jobs", "tests/__init__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    release.build(ROOT, folder, "wheel")
    return folder / release.WHEEL


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an environment of its own, in which nothing of the checkout can be imported."""
    folder = tmp_path_factory.mktemp("project")
    make_environment(folder / ".venv", wheel)
    script = folder / ".venv/bin/credhook"
    script.write_text(f"#!{folder}/.venv/bin/python\nfrom credhook.cli import main\nmain()\n")
    script.chmod(0o755)
    for name in STRANGERS:
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('this is the {name}.py of the project')\n")
    return folder


def run(folder: Path, *arguments: str | Path, path: str = "", **settings: str) -> "subprocess.CompletedProcess[str]":
    path = path or f"{folder / '.venv/bin'}:{os.environ['PATH']}"
    return subprocess.run(
        arguments, cwd=folder, env={"PATH": path, "HOME": str(folder)} | settings,
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def test_wheel_has_one_import_root_with_types_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"credhook", f"credhook-{release.VERSION}.dist-info"}
    assert "credhook/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    suffixes = {".py", ".lua", ".template", ".html", ".css", ".js"}
    paths = [path for top in ("credhook", "receiver", "worker", "sandbox") for path in (ROOT / top).rglob("*")]
    ours = {str(path.relative_to(ROOT)).removeprefix("credhook/") for path in paths if path.suffix in suffixes}
    assert {f"credhook/{path}" for path in ours} <= set(names)


def test_files_that_messages_and_docstrings_name_are_installed(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    code = "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith((".py", ".html")))
    named = set(re.findall(r"(?<![\w/.{])(?:deploy|worker|receiver|sandbox|credhook)/[\w./-]+\.\w+", code))
    assert {"deploy/README.md", "deploy/redis-users.acl", "worker/README.md"} <= named
    missing = [name for name in named if f"credhook/{name.removeprefix('credhook/')}" not in archive.namelist()]
    assert missing == []


def test_help_names_the_folder_of_the_documents(project: Path) -> None:
    shown = run(project, "credhook", "--help").stdout
    folder = site(project / ".venv") / "credhook"
    assert str(folder) in shown
    assert (folder / "deploy/README.md").is_file()


def test_every_command_is_ours_whatever_the_project_has_named_so(project: Path) -> None:
    """All in one process, which imports each of them: as many processes would import most of it again and again."""
    program = f"""
import sys
sys.path[0] = {str(project / ".venv/bin")!r}  # As for the script that is there.
from credhook.cli import main
for command in {list(COMMANDS)}:
    try:
        main([command, "--help"])
    except SystemExit as end:
        print(command, "has ended with", end.code)
"""
    done = run(project, "python", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert f"Usage: credhook {command} " in done.stdout
        assert f"\n{command} has ended with 0\n" in done.stdout


def test_script_outside_handlers_calls_the_platform(project: Path, tmp_path: Path) -> None:
    script = ROOT / "tests/examples/onboarding/list_users.py"
    with Platform(tmp_path) as sandbox, authorized(sandbox) as api:
        api.post(USERS, json={"username": "ada"}).raise_for_status()
        user = api.get(USERS).raise_for_status().json()["data"][0]
        done = run(project, "python", "-W", "error", "-P", script, **sandbox.environment)
    assert (done.stdout, done.stderr) == (f"{user['id']} ada\n", "")


def test_nothing_of_the_checkout_is_seen_there(project: Path) -> None:
    program = (
        "import credhook, importlib.util as u; from credhook.store.announcements import version; "
        "print(credhook.__file__, u.find_spec('worker'), version())"
    )
    path, outside, build = run(project, "python", "-P", "-c", program).stdout.split()
    assert build == version()  # The same code is the same build, however it is installed.
    assert re.fullmatch(rf"{re.escape(release.VERSION)}\+[0-9a-f]{{8}}", build)
    assert path.startswith(str(project / ".venv"))
    assert outside == "None"
    for name in ("cli.py", "store/scripts/take.lua"):  # Any change of the code is another build.
        file = site(project / ".venv") / "credhook" / name
        code = file.read_text()
        file.write_text(code + "\n")
        assert run(project, "python", "-P", "-c", program).stdout.split()[2] != build
        file.write_text(code)


#: A handler with a lifespan and progress, run by the installed kit. There are no sites, so nothing is sent.
TRY_OUT = """
import os, sys
sys.path.append(".")
os.environ["ENROLMENT_SITES"] = " "
import enrolment
from credhook.testing import event, run, run_event

made = event("openid4vc.issuance.completed")
assert run(enrolment.enrol, made, state=enrolment.connected, progress=0).outcome == "done"
result = run_event(made, enrolment.handlers, state=enrolment.connected)
print(result.state, dict(result.handlers))
"""


def test_example_runs_with_the_installed_kit(project: Path) -> None:
    shutil.copy(ROOT / "tests/examples/enrolment/enrolment.py", project)
    done = run(project, project / ".venv/bin/python", "-P", "-c", TRY_OUT)
    assert done.stdout == "done {'enrolment.enrol': 'done'}\n", done.stderr
