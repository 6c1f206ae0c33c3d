"""What makes two failures have one cause, and which causes an event stands with after an attempt."""

import re
from functools import partial
from typing import Any

import pytest

from credhook import GiveUp, InvalidRequest
from credhook.worker.attempt.attempt import distribution, fetch_failure, handler_failure, open_errors
from credhook.worker.attempt.retry import ConcurrencyReached
from credhook.worker.attempt.running import HandlerTimeout
from credhook.worker.handlers.registry import Handler
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.failure import Failure


def function(event: Any, context: Any) -> None:
    """Never runs."""


class Callable:
    def __call__(self, event: Any, context: Any) -> None:
        """Never runs."""


HANDLER = Handler("test.function", frozenset(), function)


def failed(raiser: Any, error: Exception) -> Failure:
    try:
        raiser(error)
    except Exception as raised:  # noqa: BLE001
        found = handler_failure(HANDLER, raised)
    assert found is not None
    return found


def one(error: Exception) -> None:
    if isinstance(error, ValueError) and error.args == ("a claim",):
        raise error
    raise error  # At another line of the same function.


def another(error: Exception) -> None:
    raise error


def test_lines_and_messages_do_not_tell_causes_apart_but_functions_and_classes_do() -> None:
    first = failed(one, ValueError("a claim"))
    assert failed(one, ValueError("another")).cause == first.cause
    assert len({first.cause, failed(another, ValueError()).cause, failed(one, TypeError()).cause}) == 3
    assert failed(one, GiveUp("for e1")).cause == failed(one, GiveUp("for e2")).cause
    assert "e1" not in failed(one, ExceptionGroup("", [GiveUp("for e1")])).what
    assert "a claim" not in f"{first!r} {first.counted()} {first.history()}"
    assert first.at.endswith(" one")


def test_a_group_is_caused_where_its_members_were_raised() -> None:
    def group(*raisers: Any) -> Failure:
        members = []
        for number, raiser in enumerate(raisers):
            try:
                raiser(KeyError("a claim") if number else ValueError("a claim"))
            except Exception as error:  # noqa: BLE001
                members.append(error)
        return failed(one, ExceptionGroup("a claim", members[::-1]))

    first = group(one, another)
    assert first.what == "ExceptionGroup (KeyError, ValueError)"
    assert first.where == f"{__name__} another, {__name__} one"
    assert re.fullmatch(r"unit/test_failures\.py:\d+ another, unit/test_failures\.py:\d+ one", first.at)
    assert group(one, another).cause == first.cause != group(one, one).cause == group(one, one, one).cause
    assert handler_failure(HANDLER, ExceptionGroup("", [PlatformPaused("it is"), ConcurrencyReached()])) is None
    assert handler_failure(HANDLER, ExceptionGroup("", [PlatformPaused("it is"), ValueError()])) is not None


def test_one_that_no_line_of_the_author_has_raised_is_at_the_handler() -> None:
    late = handler_failure(HANDLER, HandlerTimeout("longer than 3 s"), 3_000.0)
    assert late is not None
    assert (late.what, late.where) == ("HandlerTimeout", f"{__name__} function")
    assert late.at.startswith("unit/test_failures.py:")
    for form, name in ((partial(function), "function"), (Callable(), "Callable.__call__")):
        late = handler_failure(Handler("test.form", frozenset(), form), HandlerTimeout())
        assert late is not None
        assert (late.where, late.at.partition(":")[0]) == (f"{__name__} {name}", "unit/test_failures.py")


@pytest.mark.parametrize("error", [ConcurrencyReached(), PlatformPaused("it is")])
def test_what_was_only_put_off_has_not_failed(error: Exception) -> None:
    assert handler_failure(HANDLER, error) is None
    assert fetch_failure(error) is None


def test_the_status_of_the_platform_is_part_of_a_cause() -> None:
    bad, worse = (fetch_failure(InvalidRequest("no", status=status)) for status in (400, 422))
    assert bad is not None
    assert worse is not None
    assert bad.what == "InvalidRequest 400"
    assert bad.cause != worse.cause


def test_whoever_ends_well_or_fails_otherwise_leaves_a_cause() -> None:
    before = {"fetch": "f", "worker": "w", "a.x": "x", "a.y": "y"}
    assert open_errors(before, (), {}, fetched=False) == before
    assert open_errors(before, (), {"a.x": "done", "a.y": "dead: no"}, fetched=True) == {"a.y": "y"}
    again = Failure("fetch", "Unavailable 503")
    assert open_errors(before, (again,), {}, fetched=False) == {"fetch": again.cause, "a.x": "x", "a.y": "y"}


def test_what_is_installed_has_a_version_and_a_loose_module_none() -> None:
    assert distribution("pytest.fixtures").startswith("pytest ")
    assert distribution("nowhere") == ""
