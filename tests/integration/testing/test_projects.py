"""Projects that test their handlers with pytest and with unittest. There is no network and no Redis."""

import re
import shutil
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.process.no_network import PYTEST, run

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
async def test_handler_may_run_again():
    await aassert_idempotent(open_account, MADE)
"""

FAILING = """
import asyncio

import pytest
from credhook.testing import aassert_idempotent, assert_idempotent, event, run

COMPLETED = event("openid4vc.issuance.completed")
rows = []

async def adds(event, context):
    rows.append(1)

async def fails(event, context):
    await context.api.users.list()
    raise KeyError("author's line")

async def does_nothing(event, context):
    pass

def test_run():
    assert run(fails, COMPLETED).outcome == "done"

def test_failure():
    assert_idempotent(fails, COMPLETED)

def test_no_effect():
    assert_idempotent(does_nothing, COMPLETED)

@pytest.mark.asyncio
async def test_two_effects():
    await aassert_idempotent(adds, COMPLETED, fresh=rows.clear, effects=lambda: rows)
"""

#: A plugin that uses what a larger one needs: shared connections, steps, a rate, a report of failures.
TRANSFERS = """
from credhook import AsyncContext, Backoff, FailedRun, FetchedEvent, Handlers, Issuance

handlers = Handlers[list]("transfers")
audit = Handlers[list]("audit")

async def ledger():
    yield []

handlers.lifespan(ledger)
audit.lifespan(ledger)

@handlers.on("openid4vc.issuance.completed", name="move", rate="10/m", backoff=Backoff(first=60, longest=60))
async def in_steps(event: FetchedEvent[Issuance], context: AsyncContext[list]) -> None:
    step = (context.progress.value or 0) + 1
    context.state.append((context.queue, step))
    await context.progress.save(step)
    if step < 3:
        raise ConnectionError

@handlers.on("openid4vc.issuance.completed", after=in_steps)
async def check(event: FetchedEvent[Issuance], context: AsyncContext[list]) -> None:
    assert context.state == [("credhook", 1), ("credhook", 2), ("credhook", 3)]

@handlers.on_error
async def report(failure: FailedRun, context: AsyncContext[list]) -> None:
    context.log.warning("reported", error=type(failure.error).__name__, again=failure.will_retry)
"""

TEST_TRANSFERS = """
from credhook.testing import event, run_event
from transfers import audit, handlers, ledger

def test_an_event_goes_through_all_its_handlers():
    result = run_event(event("openid4vc.issuance.completed"), handlers, state=ledger)
    assert (result.state, result.handlers) == ("done", {"transfers.move": "done", "transfers.check": "done"})
    assert [(run.handler, run.seconds) for run in result.runs] == [
        ("transfers.move", 0), ("transfers.move", 60), ("transfers.move", 120), ("transfers.check", 120),
    ]
    reports = [(line["error"], line["again"]) for line in result.logged if line["event"] == "reported"]
    assert reports == [("ConnectionError", True)] * 2
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

    async def test_run_works_beside_a_loop_as_in_a_notebook(self):
        self.assertEqual(run(open_account, event("openid4vc.verification.data")).outcome, "done")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(# accounts\.py\n.*?)^```", readme, re.DOTALL | re.MULTILINE)
    (tmp_path / "accounts.py").write_text(code)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    return tmp_path


def test_with_pytest(project: Path) -> None:
    """The tests that worker/README.md teaches from, and others on an event loop."""
    for name in ("onboarding.py", "test_onboarding.py"):
        shutil.copy(ROOT / "tests" / "examples" / "onboarding" / name, project)
    (project / "test_asynchronous.py").write_text(ASYNCHRONOUS)
    assert "7 passed" in run(project, *PYTEST, "-pno:cacheprovider", warnings="error")
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == [
        "accounts.py", "onboarding.py", "pytest.ini", "test_asynchronous.py", "test_onboarding.py",
    ]  # fmt: skip


def test_plugin_with_everything_is_tested_as_one(project: Path) -> None:
    (project / "transfers.py").write_text(TRANSFERS)
    (project / "test_transfers.py").write_text(TEST_TRANSFERS)
    assert "1 passed" in run(project, *PYTEST, "-pno:cacheprovider", warnings="error")


def test_failed_test_shows_the_author_and_no_code_of_the_kit(project: Path) -> None:
    (project / "test_failing.py").write_text(FAILING)
    with pytest.raises(AssertionError) as failed:
        run(project, *PYTEST, "-pno:cacheprovider")
    said = str(failed.value)
    assert "4 failed" in said
    places = set(re.findall(r"^(\S+\.py):\d+", said, re.MULTILINE))
    assert places == {"test_failing.py"}
    assert 'File "' + str(project / "test_failing.py") in said  # In the log of the handler's error.
    assert "/credhook/testing/" not in said


def test_with_unittest(project: Path) -> None:
    (project / "test_accounts.py").write_text(UNITTEST)
    said = run(project, "unittest", "-q", warnings="error")
    assert "Ran 3 tests" in said
    assert "Warning" not in said
