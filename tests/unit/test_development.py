"""What `credhook dev` has its children say of an error, and what nobody else says."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from credhook.logs import configure_logs

#: A handler of the author's that fails two calls deep, the last of them in the standard library.
CODE = """
import json

def handler():
    read()

def read():
    json.loads("Jane")
"""


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(CODE, tmp_path / "accounts.py", "exec"), names)
    handler: Callable[[], None] = names["handler"]
    return handler


def logged(author: Callable[[], None], expected: type[Exception] = ValueError) -> dict[str, Any]:
    output = io.StringIO()
    configure_logs(output)
    try:
        author()
    except expected as error:
        structlog.get_logger("a").warning("handler_failed", exc_info=error)
    line: dict[str, Any] = json.loads(output.getvalue())
    return line


def test_the_author_is_told_what_it_says_and_where_in_their_own_code_it_was(
    author: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDHOOK_DEV", "1")
    line = logged(author)
    assert line["message"].startswith("Expecting value")
    assert [frame for frame in line["frames"] if "test_development" not in frame] == [
        "accounts.py:5 handler",
        "accounts.py:8 read",
    ]
    assert line["error"] == "JSONDecodeError"


RECURSIVE = """
def handler():
    down()

def down():
    further()

def further():
    down()
"""

GROUP = """
def handler():
    failed = []
    for kind in (KeyError, OSError):
        try:
            raise kind("Jane")
        except kind as error:
            failed.append(error)
    raise ExceptionGroup("two", failed + [ValueError("Joe")])
"""

MEMBERS = ["KeyError accounts.py:6 handler", "OSError accounts.py:6 handler", "ValueError"]


@pytest.mark.parametrize(("code", "kind", "named", "frames"), [
    (RECURSIVE, RecursionError, [],
     [r"accounts\.py:3 handler", r"accounts\.py:6 down \(\d\d+ times\)", r"accounts\.py:9 further \(\d\d+ times\)"]),
    (GROUP, ExceptionGroup, MEMBERS,
     [r"accounts\.py:9 handler", "KeyError: 'Jane'", r"accounts\.py:6 handler", "OSError: Jane",
      r"accounts\.py:6 handler", "ValueError: Joe"]),
    ("def handler():\n    raise ExceptionGroup('', [type(f'E{one}', (Exception,), {})('Jane') for one in range(20)])",
     ExceptionGroup, [f"E{number}" for number in range(8)],
     [r"accounts\.py:2 handler", *(f"E{number}: Jane" for number in range(8))]),
])  # fmt: skip
def test_each_place_and_each_member_of_a_group_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, kind: Any, named: list[str], frames: list[str]
) -> None:
    monkeypatch.setenv("CREDHOOK_DEV", "1")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, tmp_path / "accounts.py", "exec"), names)
    line = logged(names["handler"], kind)
    assert [re.sub(r" \S+/accounts", " accounts", one) for one in line.get("members", [])] == named
    told = [frame for frame in line["frames"] if "test_development" not in frame]
    assert [pattern for pattern, frame in zip(frames, told, strict=True) if not re.fullmatch(pattern, frame)] == []


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_an_operator_is_not(author: Callable[[], None], monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CREDHOOK_DEV", value)
    assert not logged(author).keys() & {"message", "frames"}
