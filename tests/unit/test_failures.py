"""What makes two failures have one cause, and which causes an event stands with after an attempt."""

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
    assert "a claim" not in f"{first!r} {first.counted()} {first.history()}"
    assert first.at.endswith(" one")


def test_one_that_no_line_of_the_author_has_raised_is_at_the_handler() -> None:
    late = handler_failure(HANDLER, HandlerTimeout("longer than 3 s"), 3_000.0)
    assert late is not None
    assert (late.what, late.where) == ("HandlerTimeout", f"{__name__} function")
    assert late.at.startswith("unit/test_failures.py:")
    assert handler_failure(Handler("test.partial", frozenset(), partial(function)), HandlerTimeout()) is not None


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
