"""Projects that test their handlers: with pytest, with unittest, in a script. There is no network and no Redis."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def code(page: str, name: str) -> str:
    """The code of that name on that page."""
    (found,) = re.findall(rf"^```python\n(# {name}\n.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


CONFIGURATION = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""

ASYNCHRONOUS = """
import pytest
from accounts import open_account
from credhook.testing import aassert_idempotent, arun, event

MADE = event("openid4vc.verification.data", attributes={"givenName": "Ada"})

@pytest.mark.asyncio
async def test_on_the_tests_loop(credhook_api):
    result = await arun(open_account, MADE, api=credhook_api)
    assert (result.outcome, len(await credhook_api.users.list())) == ("done", 1)

@pytest.mark.asyncio
async def test_it_may_run_again():
    await aassert_idempotent(open_account, MADE)

@pytest.mark.parametrize("unexpected", [{"variant": "scripts"}, {"format": "mdoc"}])
def test_it_needs_a_name(credhook_run, unexpected):
    result = credhook_run(open_account, event("openid4vc.verification.data", **unexpected))
    assert (result.outcome, result.cause) == ("waiting", "KeyError")
"""

UNITTEST = """
import unittest
from accounts import open_account
from credhook.testing import arun, assert_idempotent, event, run

class Accounts(unittest.TestCase):
    def test_an_account_is_opened(self):
        made = event("openid4vc.verification.data")
        self.assertEqual(run(open_account, made).outcome, "done")
        assert_idempotent(open_account, made)

class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_an_account_is_opened(self):
        self.assertEqual((await arun(open_account, event("openid4vc.verification.data"))).outcome, "done")

    async def test_the_other_one_says_what_to_do(self):
        with self.assertRaisesRegex(RuntimeError, "await arun"):
            run(open_account, event("openid4vc.verification.data"))
"""

SCRIPT = """
from accounts import open_account
from credhook.testing import FakeApi, event, run

api = FakeApi()
api.time_out()
print(run(open_account, event("openid4vc.verification.data"), api=api, attempts="until settled").outcome)
print(*(call.status for call in api.calls))
print(len(api.sync.users.list()))
"""


@functools.cache
def without_a_network() -> tuple[str, ...]:
    """What makes the rest of the line run where there is no network, if this machine lets us."""
    command = ("unshare", "--net", "--map-root-user")
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return command


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "accounts.py").write_text(code("README.md", "accounts.py"))
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    return tmp_path


def run(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*without_a_network(), sys.executable, "-W", "error", *arguments]
    environment = {"PATH": os.environ["PATH"], "REDIS_URL": "redis://nowhere.invalid:1/0"}
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=200
    )


def test_with_pytest(project: Path) -> None:
    """The tests that worker/README.md teaches from, and others on an event loop."""
    for name in ("onboarding.py", "test_onboarding.py"):
        shutil.copy(ROOT / "tests" / "examples" / "onboarding" / name, project)
    (project / "test_asynchronous.py").write_text(ASYNCHRONOUS)
    without = (f"-pno:{one}" for one in ("schemathesis", "hypothesispytest", "anyio", "xdist", "cacheprovider"))
    done = run(project, "-m", "pytest", "-q", *without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == [
        "accounts.py", "onboarding.py", "pytest.ini", "test_asynchronous.py", "test_onboarding.py",
    ]  # fmt: skip


def test_with_unittest(project: Path) -> None:
    (project / "test_accounts.py").write_text(UNITTEST)
    done = run(project, "-m", "unittest", "-q")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "Warning" not in done.stderr


def test_in_a_script(project: Path) -> None:
    (project / "script.py").write_text(SCRIPT)
    done = run(project, "script.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\nNone 201\n1\n", "")
