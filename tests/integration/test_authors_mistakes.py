"""The mistakes that authors of handlers make: what each of them is told, where it is, and what to do about it.

One is not here: that a handler is not idempotent cannot be seen from outside.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import commands
import forked_process
import pytest
from accepting import record
from harness import Harness
from waiting import until

HEAD = "from credhook import Handlers, Retry\n\nhandlers = Handlers('accounts')\n\n"


@dataclass(frozen=True)
class Mistake:
    """What an author has written, and the line that answers it.

    Attributes:
        files: path → text.
        said: patterns, each of which the line matches.
        handlers: what CREDHOOK_HANDLERS names.
    """

    files: dict[str, str]
    said: tuple[str, ...]
    handlers: str = "plugin"


def plugin(text: str) -> dict[str, str]:
    """As plugin.py, from line 5 on."""
    return {"plugin.py": HEAD + text}


ONE = "@handlers.on('*')\nasync def one(event, context): ...\n"

#: What stops the start.
AT_LOAD = {
    "wrong type": Mistake(
        plugin("@handlers.on('openid4vc.issuance.complete')\nasync def f(event, context): ...\n"),
        (
            r"/plugin\.py:5: ValueError: 'openid4vc\.issuance\.complete' is no",
            r"did you mean 'openid4vc\.issuance\.completed'\?",
        ),
    ),
    "no type at all": Mistake(
        plugin("@handlers.on\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: ", r'@handlers\.on\("openid4vc\.issuance\.offered"\)'),
    ),
    "types in a list": Mistake(
        plugin("@handlers.on(['*'])\nasync def f(event, context): ...\n"),
        (r"/plugin\.py:5: ValueError: on\(\) takes event types",),
    ),
    "duplicate handler": Mistake(
        plugin(ONE + ONE),
        (r"/plugin\.py:7: ValueError: 'accounts' already has a handler 'one', at \S+/plugin\.py:5; rename",),
    ),
    "duplicate plugin": Mistake(
        plugin(ONE) | {"another.py": HEAD + ONE},
        (r"two plugins are called 'accounts', at \S+/plugin\.py:3 and \S+/another\.py:3; rename",),
        handlers="plugin,another",
    ),
    "plugin named twice": Mistake(
        plugin(ONE), ("accounts is named twice; name each once",), handlers="plugin,plugin:handlers"
    ),
    "import error": Mistake(
        plugin("import database\n") | {"database.py": "\n\nimport psycopg_of_nobody\n"},
        (r"handlers plugin: \S+/database\.py:3: ModuleNotFoundError: No module named 'psycopg_of_nobody'$",),
    ),
    "error on import": Mistake(
        plugin("def connect():\n    raise OSError('no route\\nto host')\n\nconnect()\n"),
        (r"/plugin\.py:6: OSError: no route to host$",),
    ),
    "syntax error": Mistake(plugin("def f(:\n"), (r"/plugin\.py:5: SyntaxError: ",)),
    "exit on import": Mistake(plugin("raise SystemExit(3)\n"), (r"/plugin\.py:5: SystemExit: 3",)),
    "no Handlers object": Mistake({"plugin.py": "\n"}, ("plugin holds no Handlers object; add handlers =",)),
    "more than one": Mistake(
        plugin("more = Handlers('more')\n"), ("more than one Handlers object; it offers plugin:handlers,plugin:more",)
    ),
    "missing module": Mistake(
        plugin(ONE), (r"there is no module 'plugins'; did you mean plugin\?",), handlers="plugins"
    ),
    "file instead of a module": Mistake(plugin(ONE), (r"'\./plugin\.py'; did you mean plugin\?",), "./plugin.py"),
    "missing module that resembles none": Mistake(plugin(ONE), ("there is no module 'x'$",), "x"),
    "missing attribute": Mistake(
        plugin(ONE), ("plugin has no 'handler'; it offers plugin:handlers",), "plugin:handler"
    ),
    "another attribute": Mistake(
        plugin(ONE), ("'one' is no Handlers object but of type function; it offers plugin:handlers",), "plugin:one"
    ),
}


def written(folder: Path, mistake: Mistake) -> Path:
    for path, text in mistake.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("mistake", AT_LOAD.values(), ids=AT_LOAD)
def test_what_cannot_be_loaded_is_said_in_one_line(mistake: Mistake, tmp_path: Path) -> None:
    environment = {"CREDHOOK_HANDLERS": mistake.handlers}
    done = commands.credhook("handlers", "list", environment=environment, folder=written(tmp_path, mistake))
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: handlers")
    assert [pattern for pattern in mistake.said if not re.search(pattern, line)] == [], line
    assert done.returncode == 2


@pytest.mark.parametrize(("handlers", "words"), [
    ("plugin", ("plugin_without_handlers", '"accounts"', "/plugin.py:3", "@handlers.on")),
    (" , ", ("handlers_not_named", '"warning"', "CREDHOOK_HANDLERS=module")),
])  # fmt: skip
def test_a_worker_without_handlers_starts_with_one_warning(
    tmp_path: Path, handlers: str, words: tuple[str, ...]
) -> None:
    folder = written(tmp_path, Mistake({"plugin.py": HEAD}, ()))
    done = commands.credhook("handlers", "list", environment={"CREDHOOK_HANDLERS": handlers}, folder=folder)
    (line,) = done.stderr.splitlines()
    assert [word for word in words if word not in line] == []
    assert ("log.event" in done.stdout) == (handlers == " , ")
    assert done.returncode == 0


@dataclass(frozen=True)
class Lapse:
    """What a handler does while it runs, and the line that answers it.

    Attributes:
        text: of the plugin, from line 5 on.
        event: the name of that line.
        fields: each with a pattern that it matches.
        times: how often it is said of two events of the same kind.
        settings: of the worker.
    """

    text: str
    event: str
    fields: dict[str, str]
    times: int = 1
    settings: dict[str, str] = field(default_factory=dict)


def handler(*lines: str) -> str:
    """An `async def` from line 7 on; its decorator is line 6."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"import asyncio, time\n@handlers.on('*')\nasync def f(event, context):\n{body}"


def failing(text: str, fields: dict[str, str]) -> Lapse:
    """A handler that fails at both events, and is given up."""
    return Lapse(text, "handler_failed", fields, times=2, settings={"CREDHOOK_MAX_ATTEMPTS": "1"})


#: What is said while they run. The claims of the sandbox are in what the handlers hold.
AT_WORK = {
    "missing await": Lapse(
        handler("asyncio.sleep(0)"),
        "coroutine_not_awaited",
        {"coroutine": "sleep", "at": r"/plugin\.py:8$", "hint": "write await before the call"},
    ),
    "missing await of the client": Lapse(
        handler("users = context.api.users.list()"),
        "coroutine_not_awaited",
        {"coroutine": "send", "at": r"/plugin\.py:\d$", "hint": "write await"},
    ),
    "return value": Lapse(
        handler("return event.details"),
        "handler_returned",
        {
            "handler": r"accounts\.f",
            "at": r"/plugin\.py:[67]$",
            "returned": "Issuance",
            "hint": "raise Retry or GiveUp",
        },
    ),
    "never returns": Lapse(
        handler("await asyncio.sleep(600)"),
        "handler_failed",
        {"handler": r"accounts\.f", "error": "HandlerTimeout", "hint": "CREDHOOK_HANDLER_TIMEOUT"},
        times=2,
        settings={"CREDHOOK_HANDLER_TIMEOUT": "0.1", "CREDHOOK_MAX_ATTEMPTS": "1"},
    ),
    "missing key that is a claim": failing(
        handler("{'FR': 1}[{'country': 'Jane'}['country']]"),
        {"error": "^KeyError$", "at": r"^\['\S+/plugin\.py:8 f'\]$"},
    ),
    "refused by the platform": failing(
        handler("await context.api.issuances.get('iss_nobody')"),
        {"error": "^NotFound 404$", "at": r"^\['\S+/plugin\.py:8 f', "},
    ),
}


@pytest.mark.parametrize("lapse", AT_WORK.values(), ids=AT_WORK)
def test_what_goes_wrong_while_they_run_is_said_with_its_place_and_remedy(lapse: Lapse, harness: Harness) -> None:
    written(harness.folder, Mistake(plugin(lapse.text), ()))
    with harness.worker(CREDHOOK_LEASE="15", **lapse.settings) as worker:
        for name in ("m1", "m2"):  # One after the other.
            harness.happens(name)
            until(lambda name=name: record(harness.redis, name).get("state") in {"done", "dead"}, what=name)  # type: ignore[misc]
        until(lambda: worker.text.count(f'"{lapse.event}"') >= lapse.times, what=lapse.event)
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.text.splitlines() if f'"{lapse.event}"' in line]
    assert len(lines) == lapse.times
    for name, pattern in lapse.fields.items():
        assert re.search(pattern, str(lines[0][name])), (name, lines[0][name])
    assert "Jane" not in worker.text


def test_a_start_up_that_fails_is_said_with_its_place_and_keeps_the_events_waiting(harness: Harness) -> None:
    failing = "@handlers.startup\ndef connect():\n    if not Path('up').exists():\n        raise OSError('Jane Doe')\n"
    written(harness.folder, Mistake(plugin("from pathlib import Path\n" + failing + ONE), ()))
    with harness.worker() as worker:
        harness.happens("m1")
        until(lambda: worker.text.count('"startup_failed"') >= 2, what="a second try")
        assert record(harness.redis, "m1")["state"] == "accepted"
        (harness.folder / "up").write_text("")
        harness.reaches("m1", "done")
        assert worker.stop() == 0
    line = next(json.loads(one) for one in worker.text.splitlines() if '"startup_failed"' in one)
    assert (line["plugin"], line["error"], line["retry_in"]) == ("accounts", "OSError", 1.0)
    assert re.search(r"/plugin\.py:9 connect$", line["at"][-1])
    assert "No event is taken" in line["hint"]
    assert "Jane" not in worker.text


def test_a_handler_that_is_not_idempotent_is_found_by_the_test_kit_with_the_line(tmp_path: Path) -> None:
    text = "rows = []\n" + handler("rows.append(event.resource_id)", "await asyncio.sleep(0)")
    folder = written(tmp_path, Mistake(plugin(text), ()))
    trial = (
        "from plugin import f, rows; from credhook.testing import assert_idempotent, event\n"
        "made = event('openid4vc.issuance.completed')\n"
        "assert_idempotent(f, made, fresh=rows.clear, effects=lambda: list(rows))\n"
    )
    done = forked_process.run("-c", trial, cwd=folder)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "AssertionError: accounts.f" in done.stderr
    assert done.stderr.count("iss_") == 0, last
