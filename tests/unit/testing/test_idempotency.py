"""`assert_idempotent`: where a handler can die, handlers that may run again, and those that may not, each found out."""

import asyncio
import gc
import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from credhook import GiveUp, Handlers, UserRequest
from credhook.testing import FakeApi, aassert_idempotent, assert_idempotent, event
from credhook.testing.idempotency import Crashed, CrashPoint
from credhook.worker.handlers.arguments import Context, FetchedEvent, SyncContext

log: list[str] = []


async def does(word: str) -> None:
    await asyncio.sleep(0)
    log.append(word)


class Manager:
    async def __aenter__(self) -> None:
        log.append("enters")

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        log.append("leaves")


async def numbers() -> AsyncIterator[int]:
    await does("counts")
    yield 1
    yield 2


async def calls() -> None:
    await does("a")
    await does("b")


async def manages() -> None:
    async with Manager():
        await does("a")


async def gathers() -> None:
    await asyncio.gather(does("a"), does("b"))


async def wraps() -> None:
    await asyncio.wait_for(does("a"), 5)


async def iterates() -> None:
    async for number in numbers():
        await does(str(number))


async def survives() -> None:
    try:
        await does("a")
    except BaseException:  # noqa: BLE001
        log.append("survived")


async def crashes(handler: Any, number: int) -> tuple[CrashPoint, list[str]]:
    log.clear()
    point = CrashPoint(number)
    with pytest.raises(Crashed) if number else nullcontext():
        await point.wrap(lambda event, context: handler())(None, None)
    await asyncio.sleep(0.01)  # Tasks that survived would act now.
    return point, log.copy()


@pytest.mark.parametrize(("handler", "done"), [
    (calls, [[], ["a"]]),
    (manages, [["enters", "leaves"], ["enters", "a"]]),
    (gathers, [[]]),
    (wraps, [[]]),
    (iterates, [[], ["counts"], ["counts", "1"]]),
    (survives, [["survived"]]),  # It catches the crash, and is dead all the same.
])  # fmt: skip
async def test_each_await_that_suspends_is_a_place_to_die(
    handler: Any, done: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    whole, _ = await crashes(handler, 0)
    assert [(await crashes(handler, number))[1] for number in range(1, whole.awaits + 1)] == done
    gc.collect()
    assert caplog.records == []  # Nothing is said of abandoned tasks.


async def test_an_error_before_the_crash_point_is_the_handlers() -> None:
    async def fails() -> None:
        await does("a")
        raise ValueError("as ever")

    with pytest.raises(ValueError, match="as ever"):
        await CrashPoint(7).wrap(lambda event, context: fails())(None, None)


handlers = Handlers("accounts")
EVENT = event("openid4vc.issuance.completed")


class Tables:
    def __init__(self) -> None:
        self.rows: dict[str, list[str]] = {"accounts": [], "mails": []}

    async def insert(self, table: str, row: str) -> None:
        await asyncio.sleep(0)
        self.rows[table].append(row)

    async def insert_once(self, table: str, row: str) -> None:
        await asyncio.sleep(0)
        if row not in self.rows[table]:
            self.rows[table].append(row)


tables = Tables()
#: How a test empties the database and reads it.
IN_TABLES: Any = {"fresh": lambda: tables.rows.update(accounts=[], mails=[]), "effects": lambda: tables.rows}


@handlers.on("openid4vc.issuance.completed")
async def resolves_a_user(event: FetchedEvent, context: Context) -> None:
    await context.api.users.create(UserRequest(username=event.resource_id))
    await context.api.users.link_identity(event.resource_id, enabled=True)


async def inserts_once(event: FetchedEvent, context: Context) -> None:
    await tables.insert_once("accounts", event.resource_id)
    await tables.insert_once("mails", context.idempotency_key)


async def inserts(event: FetchedEvent, context: Context) -> None:
    await tables.insert("accounts", event.resource_id)


async def looks_first(event: FetchedEvent, context: Context) -> None:
    """The classic: right if run twice, wrong if it died between the two."""
    if event.resource_id in tables.rows["accounts"]:
        return
    await tables.insert("accounts", event.resource_id)
    await tables.insert("mails", event.resource_id)


def inserts_in_a_thread(event: FetchedEvent, context: Context) -> None:
    tables.rows["accounts"].append(event.resource_id)


def resolves_in_a_thread(event: FetchedEvent, context: SyncContext) -> None:
    context.api.users.create(UserRequest(username=event.resource_id))


async def links_only_a_new_user(event: FetchedEvent, context: Context) -> None:
    user = await context.api.users.create(UserRequest(username=event.resource_id))
    if not user.existed:
        await context.api.users.link_identity(event.resource_id, enabled=True)


async def fails(event: FetchedEvent, context: Context) -> None:
    raise ValueError("Ada")


async def fails_the_second_time(event: FetchedEvent, context: Context) -> None:
    assert event.resource_id not in tables.rows["accounts"]
    await tables.insert("accounts", event.resource_id)


async def gives_up_the_second_time(event: FetchedEvent, context: Context) -> None:
    if event.resource_id in tables.rows["accounts"]:
        raise GiveUp("exists")
    await tables.insert("accounts", event.resource_id)


async def gives_up_and_then_fails(event: FetchedEvent, context: Context) -> None:
    await fails_the_second_time(event, context)
    raise GiveUp("account is closed")


async def gives_up(event: FetchedEvent, context: Context) -> None:
    await tables.insert_once("accounts", event.resource_id)
    raise GiveUp("account is closed")


@pytest.mark.parametrize(("handler", "where"), [
    (resolves_a_user, {}), (resolves_in_a_thread, {}), (inserts_once, IN_TABLES), (gives_up, IN_TABLES),
])  # fmt: skip
def test_equal_effects_pass(handler: Any, where: Any) -> None:
    assert_idempotent(handler, EVENT, **where)


@pytest.mark.parametrize(("handler", "died", "row"), [
    (inserts, "ended without being recorded as done", r"\+\{'accounts': \['iss"),
    (inserts_in_a_thread, "ended without being recorded as done", r"\+\{'accounts': \['iss"),
    (looks_first, "died at its await 2 at {}", r"\+.*'mails': \[\]"),
])  # fmt: skip
def test_different_effects_are_reported_with_the_place(handler: Any, died: str, row: str) -> None:
    place = f"{__file__}:{Tables.insert.__code__.co_firstlineno + 1}"
    with pytest.raises(AssertionError, match=row) as told:
        assert_idempotent(handler, EVENT, **IN_TABLES)
    said = f"test.{handler.__name__} is not idempotent: it {died.format(place)}, ran again, and left\n"
    assert str(told.value).startswith(said)


def test_a_call_of_the_platform_is_an_await_to_die_at() -> None:
    with pytest.raises(AssertionError, match="it died at its await 2 at") as told:
        assert_idempotent(links_only_a_new_user, EVENT)
    assert "'linked': False" in str(told.value)


@pytest.mark.parametrize(("handler", "what"), [
    (fails, r"test.fails did not get done when nothing disturbed it: dead, ValueError at testing/test_idemp"),
    (fails_the_second_time, "run again: it ended without being recorded as done, and .* as dead, AssertionError at"),
    (gives_up_and_then_fails, "cannot run again: .* and the next run ended as dead, AssertionError at"),
    (gives_up_the_second_time, "cannot run again: .* and the next run ended as dead, exists at"),
])  # fmt: skip
def test_failures_of_the_handler_are_reported(handler: Any, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        assert_idempotent(handler, EVENT, **IN_TABLES)


def test_an_installed_handler_dies_at_its_own_awaits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site-packages").mkdir()
    lines = "import asyncio", "rows = []", "async def f(event, context):", "    if rows: return", "    rows.append(1)"
    text = "\n".join([*lines, "    await asyncio.sleep(0)", "    rows.append(2)"])
    (tmp_path / "site-packages" / "installed_one.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    module = importlib.import_module("installed_one")
    with pytest.raises(AssertionError, match=r"died at its await 1 at \S+installed_one.py:6"):
        assert_idempotent(module.f, EVENT, fresh=module.rows.clear, effects=lambda: module.rows)


def test_effects_are_compared_as_they_were_after_the_run() -> None:
    """`fresh` empties the very table that `effects` has returned before."""
    table: dict[int, str] = {}

    async def appends(event: FetchedEvent, context: Context) -> None:
        table[len(table)] = event.resource_id

    with pytest.raises(AssertionError, match="is not idempotent"):
        assert_idempotent(appends, EVENT, fresh=table.clear, effects=lambda: {"rows": table})


@pytest.mark.parametrize("where", [{}, {"fresh": log.clear, "effects": log.copy}])
def test_handler_without_an_effect_to_compare_is_refused(where: Any) -> None:
    async def does_nothing(event: FetchedEvent, context: Context) -> None:
        pass

    with pytest.raises(AssertionError, match="does_nothing had no effect to compare: let fresh= make"):
        assert_idempotent(does_nothing, EVENT, **where)


def test_effects_that_all_runs_share_are_refused() -> None:
    """The first run would have done everything, so that no later run could fail to do it."""

    async def charges(event: FetchedEvent, context: Context) -> None: ...

    with pytest.raises(ValueError, match="effects= without fresh= would compare data that all runs share: pass fresh="):
        assert_idempotent(charges, EVENT, effects=log.copy)


def test_fresh_state_may_be_a_context_manager() -> None:
    table: list[int] = []

    @asynccontextmanager
    async def emptied() -> AsyncIterator[list[int]]:
        table.clear()
        yield table

    async def appends(event: FetchedEvent, context: Context[Any, Any]) -> None:
        context.state.append(len(context.state))

    with pytest.raises(AssertionError, match="is not idempotent"):
        assert_idempotent(appends, EVENT, fresh=emptied, effects=len)


def test_fresh_state_with_a_plain_yield_is_refused() -> None:
    def emptied() -> Iterator[None]:
        yield

    async def does_nothing(event: FetchedEvent, context: Context) -> None: ...

    with pytest.raises(TypeError, match="fresh= has a yield: make it an `async def`"):
        assert_idempotent(does_nothing, EVENT, fresh=emptied, effects=log.copy)


async def test_fresh_state_can_be_arranged_on_the_platform_and_handed_on() -> None:
    arranged, attempts = [], []

    async def arrange(api: FakeApi) -> Tables:
        await api.users.create(UserRequest(username="grace"))
        arranged.append(api)
        return Tables()

    async def finds_grace(event: FetchedEvent, context: Context[Any, Any]) -> None:
        attempts.append(event.attempt)
        context.state.rows["accounts"] = [user.username for user in await context.api.users.list()]

    async def of(state: Tables) -> Any:
        await asyncio.sleep(0)
        return state.rows

    await aassert_idempotent(finds_grace, EVENT, fresh=arrange, effects=of)
    assert len({id(api) for api in arranged}) == 3
    assert attempts == [1, 1, 2, 1, 2]
    assert_idempotent(finds_grace, EVENT, fresh=arrange, effects=of)  # In another thread, beside this loop.
    assert len(attempts) == 10
