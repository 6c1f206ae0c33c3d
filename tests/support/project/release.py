"""Build the release of a commit into dist/, and try it as a stranger would: `make release`.

Everything is made from the files of HEAD, and tried in folders outside the checkout. At the end it replaces dist/.
"""

import filecmp
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from credhook.sandbox.local.environment import local_environment
from support.checkout import ROOT

DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
PYTHONS = re.findall(r"Python :: (\d+\.\d+)", "\n".join(PROJECT["classifiers"]))
WHEEL = f"credhook-{VERSION}-py3-none-any.whl"
SDIST = f"credhook-{VERSION}.tar.gz"
LOCK = DEPLOY / "requirements.txt"
#: Holds also the build backend, and what `demo` and the tests of `credhook new` need.
LOCAL_LOCK = DEPLOY / "requirements-local.txt"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UV = (sys.executable, "-m", "uv")


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run a command with nothing of this checkout in its environment, and return its output. Exit if it fails."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "CREDHOOK_", "REDIS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | environment
    done = subprocess.run(
        command, cwd=folder, env=kept, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=900,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def build(source: Path, folder: Path, *targets: str) -> None:
    """Build `targets` (wheel, sdist) of the project in `source` into `folder`."""
    options = [word for target in targets for word in ("-t", target)]
    run(sys.executable, "-m", "hatchling", "build", *options, "-d", str(folder), folder=source)


def build_twice(first: Path, second: Path, made: Path) -> None:
    """Build both folders of one source, and the wheel from the sdist. Exit unless all bytes are the same."""
    again, unpacked = made.with_name("again"), made.with_name("unpacked")
    build(first, made, "sdist", "wheel")
    build(second, again, "sdist", "wheel")
    unpacked.mkdir()
    run("tar", "-xf", str(made / SDIST), folder=unpacked)
    build(unpacked / SDIST.removesuffix(".tar.gz"), unpacked, "wheel")
    for name, other in ((WHEEL, again), (SDIST, again), (WHEEL, unpacked)):
        if not filecmp.cmp(made / name, other / name, shallow=False):
            raise SystemExit(f"{name} is not reproducible: {other.name} has other bytes")


def constraints() -> str:
    """Return the lock without its hashes: with them, pip would want a hash of everything else as well."""
    pins = re.findall(r"^([a-z0-9].*?) *\\$", LOCK.read_text(), re.MULTILINE)
    return "\n".join(pins) + "\n"


def blocks(language: str) -> list[str]:
    """Return the code in deploy/INSTALL.md of one language."""
    text = (DEPLOY / "INSTALL.md").read_text()
    return re.findall(rf"^```{language}\n(.+?)^```", text, re.MULTILINE | re.DOTALL)


def take_step(step: str, folder: Path, **environment: str) -> str:
    """Run one of these commands with this Python as `python3`, and return its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return run("sh", "-c", step, folder=folder, PATH=path, **environment)


def write_bill(bill: Path, python: str, folder: Path) -> None:
    """Write the bill of materials of what this Python has installed, with the hashes of the lock."""
    options = ("--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"))
    for command, source, file in (("environment", python, bill), ("requirements", str(LOCK), folder / "lock.json")):
        run(sys.executable, "-m", "cyclonedx_py", command, *options, "-o", str(file), source, folder=folder)
    bom, locked = (json.loads(file.read_text()) for file in (bill, folder / "lock.json"))
    # Each package has the hashes of all its archives: pip chooses the one that fits the machine.
    archives = {component["purl"].lower(): component["externalReferences"] for component in locked["components"]}
    for component in bom["components"]:
        component.setdefault("externalReferences", []).extend(archives[component["purl"].lower()])
    bill.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")


def try_alone(archive: Path, folder: Path, bill: Path | None = None) -> None:
    """Install the archive in an empty environment. Run the demo, and the tests of new handlers, there."""
    python, program = str(folder / "env/bin/python"), str(folder / "env/bin/credhook")
    install = (*PIP, "--python", python, "install")
    # Without pip, so that the bill of materials names what runs. The sdist needs the build backend.
    run(sys.executable, "-m", "venv", "--without-pip", "env", folder=folder)
    run(*install, "--require-hashes", "-r", str(LOCK if bill else LOCAL_LOCK), folder=folder)
    run(*install, "--no-deps", "--no-build-isolation", str(archive), folder=folder)
    if bill is not None:
        write_bill(bill, python, folder)
        run(*install, "--require-hashes", "-r", str(LOCAL_LOCK), folder=folder)
    say(f"{archive.name}: {run(program, 'demo', folder=folder).splitlines()[-1]}")
    run(program, "new", "accounts", folder=folder)
    tested = run(python, "-m", "pytest", "-q", folder=folder / "accounts")
    say(f"{archive.name}: tests of credhook new: {tested.splitlines()[-1]}")


def follow_install(folder: Path) -> None:
    """Take the steps of deploy/INSTALL.md in a folder with the released files. Exit if the image takes others."""
    *steps, start = blocks("sh")[0].splitlines()
    for step in steps:
        take_step(step, folder)
    with local_environment({}) as local:
        said = take_step(f"{start} --burst", folder, **local.environment)
    if '"handlers":["accounts.' not in said:
        raise SystemExit(f"the worker has not loaded the handlers:\n{said}")
    (platform_file,), (image,) = blocks("text"), blocks("dockerfile")
    (folder / "platform.txt").write_text(platform_file)
    take_step("env/bin/pip install --requirement platform.txt", folder)
    installs = [step.removeprefix("env/bin/") for step in steps if step.startswith("env/bin/pip install")]
    if re.findall("^RUN (.+)$", image.replace("/tmp/", ""), re.MULTILINE) != installs:
        raise SystemExit("deploy/INSTALL.md: the image is not installed by the commands of the virtual environment")


def release(folder: Path) -> None:
    """Make and try everything in `folder`, and put it into dist/."""
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", folder=ROOT).strip()
    run("git", "archive", "--output", str(folder / "commit.tar"), "HEAD", folder=ROOT)
    for name in ("first", "second", "wheel", "sdist", "author"):
        (folder / name).mkdir()
    for name in ("first", "second"):
        run("tar", "-xf", str(folder / "commit.tar"), folder=folder / name)
    made = folder / "made"
    build_twice(folder / "first", folder / "second", made)
    say("built twice, and the wheel from the sdist: the same bytes")
    # With rich, which it brings, each process of the tests would start 0.06 s later: it stays out of .venv.
    run(*UV, "tool", "run", "--quiet", "twine@7.0.0", "check", "--strict", WHEEL, SDIST, folder=made)
    for python in PYTHONS:
        options = ("--dry-run", "--only-binary", ":all:", "--python-version", python, "--target", str(folder))
        run(*PIP, "install", *options, "--require-hashes", "-r", str(LOCK), folder=folder)
    say(f"{LOCK.name}: wheels for Python {', '.join(PYTHONS)}")
    for lock in (LOCK, LOCAL_LOCK):
        shutil.copy(lock, made)
    (made / "constraints.txt").write_text(constraints())
    try_alone(made / WHEEL, folder / "wheel", made / f"credhook-{VERSION}.cdx.json")
    try_alone(made / SDIST, folder / "sdist")
    for name in (WHEEL, LOCK.name, LOCAL_LOCK.name, "constraints.txt"):
        shutil.copy(made / name, folder / "author")
    follow_install(folder / "author")
    say("deploy/INSTALL.md: the commands install credhook and handlers, and a worker runs them")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
    (made / "SHA256SUMS").write_text("".join(sums))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    shutil.copytree(made, ROOT / "dist")
    say("".join(sums).rstrip())


if __name__ == "__main__":
    if run("git", "status", "--porcelain", folder=ROOT):
        raise SystemExit("a release is built from a commit: commit or stash what git status shows")
    with TemporaryDirectory(prefix="credhook-release-") as folder:
        release(Path(folder))
