"""Whose line is shown: the author's own comes first, also when a library or we have raised."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from credhook.logs.places import is_authors, loaded_from, places

OURS = str(Path(is_authors.__wrapped__.__code__.co_filename).parent / "worker" / "client.py")
LIBRARY = "/srv/app/.venv/lib/python3.11/site-packages/httpx/client.py"


def function(file: str, name: str, body: str, **known: Any) -> Callable[[], Any]:
    """A function as if it stood in that file."""
    scope: dict[str, Any] = dict(known)
    exec(compile(f"def {name}():\n    {body}\n", file, "exec"), scope)
    made: Callable[[], Any] = scope[name]
    return made


def came_through(*steps: tuple[str, str]) -> BaseException:
    """An error that came through functions of these files and names, the outermost first."""
    call = function(*steps[-1], "raise ValueError")
    for file, name in reversed(steps[:-1]):
        call = function(file, name, "called()", called=call)
    try:
        call()
    except ValueError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # Without this function.
        return error
    raise AssertionError


def shown(*steps: tuple[str, str]) -> list[str]:
    return [place.rpartition(" ")[2] for place in places(came_through(*steps), 4)]


US = [(OURS, f"us{number}") for number in range(5)]
THEM = [(LIBRARY, f"them{number}") for number in range(3)]
AUTHOR = [("/srv/app/handlers.py", f"author{number}") for number in range(6)]


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ([US[0], AUTHOR[0]], ["author0"]),
        ([US[0], AUTHOR[0], *US[1:]], ["author0", "us4"]),
        ([US[0], AUTHOR[0], AUTHOR[1], US[1], *THEM], ["author0", "author1", "them2"]),
        ([US[0], *AUTHOR, US[1]], ["author3", "author4", "author5", "us1"]),
        ([US[0], *AUTHOR], ["author2", "author3", "author4", "author5"]),
        ([US[0], AUTHOR[0], THEM[0], AUTHOR[1], US[1]], ["author0", "author1", "us1"]),
        ([*US, *THEM], ["us4", "them0", "them1", "them2"]),
        ([US[0]], ["us0"]),
    ],
)
def test_the_authors_own_lines_come_before_what_they_called(steps: list[tuple[str, str]], names: list[str]) -> None:
    assert shown(*steps) == names


def test_a_place_is_a_file_a_line_and_a_function() -> None:
    assert places(came_through(AUTHOR[0]), 4) == ["app/handlers.py:2 author0"]


@pytest.mark.parametrize("file", [OURS, LIBRARY, types.__file__, "<frozen importlib._bootstrap>", "<string>"])
def test_what_is_no_authors(file: str | None) -> None:
    assert not is_authors(str(file))


def test_a_package_is_its_authors_once_handlers_were_loaded_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for package in ("accounts", "accounts_of_others"):
        (installed / package).mkdir(parents=True)
        (installed / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(installed)
    handlers = str(installed / "accounts" / "handlers.py")
    assert not is_authors(handlers)
    loaded_from("accounts.handlers")
    assert is_authors(handlers)
    assert not is_authors(str(installed / "accounts_of_others" / "handlers.py"))


@pytest.mark.parametrize(
    "module", ["nowhere_to_be_found", "credhook.worker.handlers.logging_handler", "__main__", "os"]
)
def test_nothing_else_becomes_an_authors(module: str) -> None:
    loaded_from(module)
    assert not is_authors(OURS)
    assert not is_authors(LIBRARY)


def test_the_line_of_a_stop_iteration_in_a_coroutine_is_the_authors() -> None:
    scope: dict[str, Any] = {}
    exec(compile("async def looks():\n    next(iter(()))\n", "/srv/app/handlers.py", "exec"), scope)
    with pytest.raises(RuntimeError) as caught:
        scope["looks"]().send(None)
    assert places(caught.value.with_traceback(None), 4) == ["app/handlers.py:2 looks"]
