"""What is installed: the wheel, beside a project whose own files have the names of our folders."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from waiting import until

from credhook.cli import COMMANDS
from credhook.store.announcements import version

ROOT = Path(__file__).parents[2]

#: What a project may well have of its own. Whoever imports it instead of ours is told.
STRANGERS = ("worker", "receiver", "sandbox", "settings", "cli", "events", "logs", "store", "jobs", "tests/__init__")

PLUGIN = """
from credhook import EVENT_TYPES, Context, FetchedEvent, GiveUp, Handlers, Issuance, Retry

handlers = Handlers("mine")

@handlers.on("*")
async def seen(event: FetchedEvent, context: Context) -> None:
    with open("seen", "a") as file:
        print(event.type, event.details.id == event.resource_id, file=file)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an environment of its own, in which nothing of the checkout can be imported."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / ".venv")}))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    # What we depend on: a folder named here is only looked into, so that the way to the checkout in it is not taken.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    script = folder / ".venv/bin/credhook"
    script.write_text(f"#!{folder}/.venv/bin/python\nfrom credhook.cli import main\nmain()\n")
    script.chmod(0o755)
    for name in STRANGERS:
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('this is the {name}.py of the project')\n")
    (folder / "handlers.py").write_text(PLUGIN)
    return folder


def run(project: Path, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    path = f"{project / '.venv/bin'}:{os.environ['PATH']}"
    return subprocess.run(
        arguments, cwd=project, env={"PATH": path, "HOME": str(project), **settings},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def test_it_holds_one_import_root_with_its_types_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"credhook", "credhook-0.1.0.dist-info"}
    assert "credhook/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = ("credhook", "receiver", "worker", "sandbox")
    paths = [path for top in tops for suffix in ("py", "lua", "template") for path in (ROOT / top).rglob(f"*.{suffix}")]
    ours = {str(path.relative_to(ROOT)).removeprefix("credhook/") for path in paths}
    assert {f"credhook/{path}" for path in ours} <= set(names)


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


@pytest.mark.parametrize("name", ["receiver", "worker", "sandbox"])
def test_the_modules_do_the_same(project: Path, name: str) -> None:
    done = run(project, "python", "-m", f"credhook.{name}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout


def test_nothing_of_the_checkout_is_seen_there(project: Path) -> None:
    program = (
        "import credhook, importlib.util as u; from credhook.store.announcements import version; "
        "print(credhook.__file__, u.find_spec('worker'), version())"
    )
    path, outside, build = run(project, "python", "-P", "-c", program).stdout.split()
    assert build == version()  # The same code is the same build, however it is installed.
    assert re.fullmatch(r"0\.1\.0\+[0-9a-f]{8}", build)
    assert path.startswith(str(project / ".venv"))
    assert outside == "None"


def test_the_projects_own_handlers_are_found_and_run(project: Path) -> None:
    """With receiver, worker and sandbox as processes, and those that they start themselves."""
    shown = run(project, "credhook", "handlers", "list", CREDHOOK_HANDLERS="handlers")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "mine.seen" in shown.stdout
    log = project / "stay.log"
    environment = {"PATH": f"{project / '.venv/bin'}:{os.environ['PATH']}"}
    with log.open("wb") as output:
        stay = subprocess.Popen(
            ["credhook", "dev"], cwd=project, env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: "ready  handlers=mine.seen" in log.read_text() or stay.poll() is not None, what="the worker")
        assert "ready  handlers=mine.seen" in log.read_text(), log.read_text()
        platform = re.findall(r"^platform +(\S+)", log.read_text(), re.MULTILINE)[0]
        made = run(project, "credhook", "trigger", "issuance.completed", "--url", platform)
        assert made.returncode == 0, made.stderr
        until((project / "seen").exists, what="the handler")
    finally:
        stay.send_signal(signal.SIGINT)
        stay.wait(60)
    assert (project / "seen").read_text() == "openid4vc.issuance.completed True\n"
    assert "of the project" not in log.read_text()
