"""The READMEs against the code: what is missing from them, or no longer true, fails here."""

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from credhook.cli import LazyGroup
from credhook.events import EVENT_TYPES
from credhook.sandbox import app as _app  # noqa: F401  It registers every operation.
from credhook.sandbox.command import sandbox
from credhook.sandbox.deliveries import SANDBOX_SECRET
from credhook.sandbox.operations import OPERATIONS
from credhook.sandbox.tenant import Faults
from credhook.settings import ConsoleSettings, EndpointSettings, LogSettings, ReceiverSettings, WorkerSettings
from credhook.testing import event, run, variants
from credhook.worker.handlers.arguments import FetchedEvent
from credhook.worker.handlers.registry import Options
from support.checkout import ROOT

#: Each page, by its path.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("*.md", "worker/*.md", "deploy/*.md", "sandbox/*.md", "tests/bench/*.md", "tests/examples/*/*.md")
    for path in ROOT.glob(pattern)
}
#: Where settings and commands are.
OPERATING = PAGES["deploy/README.md"]

#: Set by `credhook dev`, which is not a user's business.
LOG_VARIABLES = {"CREDHOOK_DEV"}


def rows(settings: type[BaseSettings]) -> Iterator[str]:
    """The row for each setting: name, default, meaning."""
    for field in settings.model_fields.values():
        default = field.get_default()
        if field.is_required():
            shown = "required"
        elif default in (None, (), {}, False):
            shown = "none"
        elif default is True:
            shown = "`1`"
        else:
            shown = f"`{default.get_secret_value() if isinstance(default, SecretStr) else default}`"
        yield f"| `{field.validation_alias}` | {shown} | {field.description} |"


def test_every_setting_has_its_row_and_no_row_is_of_a_setting_that_is_gone() -> None:
    classes = ReceiverSettings, WorkerSettings, EndpointSettings, ConsoleSettings, LogSettings
    expected = {row for settings in classes for row in rows(settings)}
    found = re.findall(r"^\| `[A-Z_]+` .*", OPERATING, re.MULTILINE)
    assert {row for row in found if row.split("`")[1] not in LOG_VARIABLES} == expected


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by what is typed."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child
            yield from commands(child, f"{path} {name}")


def test_every_command_is_named_and_explains_itself_and_all_its_options() -> None:
    _, *found = commands(LazyGroup(), "credhook")
    typed = [path for path, command in found if not isinstance(command, click.Group)]
    named = {path: "api …" if path.startswith("credhook api ") else path.removeprefix("credhook ") for path in typed}
    assert [path for path in typed if not re.search(rf"^\| .*`{named[path]}[` ]", OPERATING, re.MULTILINE)] == []
    for path, command in found:
        assert command.help, path
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert [one.name for one in options if not one.help] == [], path


#: Each piece of Python in them, by its page and the file that its first line names.
EXAMPLES = [
    (path, *example)
    for path, text in PAGES.items()
    for example in re.findall(r"^```python\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
]


def test_every_example_in_it_is_tried() -> None:
    """The first page's is loaded here and run elsewhere; the others are of packages that the suite tests."""
    assert sum(text.count("```python") for text in PAGES.values()) == len(EXAMPLES)
    assert [name for path, name, _ in EXAMPLES if path != "worker/README.md"] == ["accounts.py"]


DATA = "openid4vc.verification.data"
FORMS = [*({"format": name} for name in ("sd-jwt", "mdoc")), {"is_valid": False}, {"status": "requested"}]


@pytest.mark.parametrize("form", [*FORMS, *({"variant": name} for name in variants(DATA))], ids=str)
def test_readme_handler_ends_as_the_page_says(form: dict[str, Any]) -> None:
    ((_, _, code),) = [example for example in EXAMPLES if example[0] == "README.md"]
    page: dict[str, Any] = {"__name__": "accounts"}
    exec(code, page)
    made: FetchedEvent[Any] = event(DATA, **form)
    result = run(page["open_account"], made)
    said = ("done", "") if made.details.trusted else ("dead", "the presentation is not valid")
    assert (result.outcome, result.cause) == said


@pytest.mark.parametrize(("name", "example"), [example[1:] for example in EXAMPLES if example[0] == "worker/README.md"])
def test_readme_examples_match_their_packages(name: str, example: str) -> None:
    """Word for word, part for part; two empty lines stand between its parts."""
    (path,) = (ROOT / "tests" / "examples").glob(f"*/{name}")
    source = path.read_text()
    assert [part for part in example.strip().split("\n\n\n") if part not in source] == []


def test_every_option_of_a_handler_has_its_row() -> None:
    assert [name for name in Options.__annotations__ if f"\n| `{name}` | " not in PAGES["worker/README.md"]] == []


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_every_event_type_is_named(event_type: str) -> None:
    family, _, word = event_type.rpartition(".")
    (row,) = re.findall(rf"^\| `{family}\.` \| (.*)", PAGES["worker/README.md"], re.MULTILINE)
    assert f"`{word}`" in row


def test_every_file_on_the_map_exists() -> None:
    names = set(re.findall(r"`([\w/]+\.(?:py|lua))`", PAGES["CONTRIBUTING.md"]))
    assert [name for name in names if not (ROOT / name).is_file() and not list(ROOT.glob(f"[!.]*/**/{name}"))] == []


def test_every_make_target_in_it_exists() -> None:
    named = {target for text in PAGES.values() for target in re.findall(r"`make ([a-z]+)`", text)}
    assert named <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_every_heading_that_it_links_to_exists(page: str) -> None:
    paths = re.findall(r"\]\(([^)#:\"]+)\)", PAGES[page])
    assert [path for path in paths if not ((ROOT / page).parent / path).exists()] == []
    headings = re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGES[page])) <= {one.lower().replace(" ", "-") for one in headings}


def test_each_picture_is_described_and_small() -> None:
    """A page is to load at once, and a checkout keeps every version of a picture."""
    pictures = re.findall(r"!\[(.*?)\]\(deploy/(pictures/.+?)\)", PAGES["README.md"])
    assert min(len(description) for description, _ in pictures) > 50
    sizes = {f"pictures/{path.name}": path.stat().st_size for path in (ROOT / "deploy" / "pictures").iterdir()}
    assert sorted(sizes) == sorted(name for _, name in pictures)
    assert [name for name, size in sizes.items() if size > 150_000] == []


def test_the_sandboxs_routes_faults_and_options_are_named_and_its_secret() -> None:
    ours = [operation for operation in OPERATIONS if operation.path.startswith("/sandbox/")]
    routes = [f"{operation.method} {operation.path.replace(':path', '')}`" for operation in ours]
    faults = [f"`{field.alias or name}`" for name, field in Faults.model_fields.items()]
    options = [f"`{each.opts[0]}" for each in sandbox.params if each.name not in {*Faults.model_fields, "env"}]
    assert min(map(len, (routes, faults, options))) > 1
    page = PAGES["sandbox/README.md"]
    assert [text for text in (*routes, *faults, *options, SANDBOX_SECRET) if text not in page] == []
