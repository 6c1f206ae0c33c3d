"""The READMEs against the code: what is missing from them, or no longer true, fails here."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from credhook.cli import LazyGroup
from credhook.console.command import ConsoleSettings
from credhook.events import EVENT_TYPES
from credhook.receiver.settings import ReceiverSettings
from credhook.sandbox import app as _app  # noqa: F401  It registers every operation.
from credhook.sandbox.command import sandbox
from credhook.sandbox.deliveries import SANDBOX_SECRET
from credhook.sandbox.operations import OPERATIONS, SandboxOperation
from credhook.sandbox.tenant import Faults
from credhook.testing import event, run, variants
from credhook.worker.handlers.registry import FetchedEvent, Options
from credhook.worker.settings import EndpointSettings, WorkerSettings

ROOT = Path(__file__).parents[2]
#: Each page, by its path.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("*.md", "worker/*.md", "deploy/*.md", "sandbox/*.md", "tests/bench/*.md", "tests/examples/*/*.md")
    for path in ROOT.glob(pattern)
}
#: Where settings and commands are.
OPERATING = PAGES["deploy/README.md"]

#: Read before any settings are, by credhook/logs/__init__.py itself.
LOG_VARIABLES = {"CREDHOOK_LOG", "CREDHOOK_LOG_LEVEL", "CREDHOOK_DEV"}


def rows(settings: type[BaseSettings]) -> Iterator[str]:
    """The row for each setting: name, default, meaning."""
    for field in settings.model_fields.values():
        default = field.get_default()
        if field.is_required():
            shown = "required"
        elif default in {None, (), False}:
            shown = "none"
        elif default is True:
            shown = "`1`"
        else:
            shown = f"`{default.get_secret_value() if isinstance(default, SecretStr) else default}`"
        yield f"| `{field.validation_alias}` | {shown} | {field.description} |"


SETTINGS = (ReceiverSettings, WorkerSettings, EndpointSettings, ConsoleSettings)
EXPECTED = [*dict.fromkeys(row for one in SETTINGS for row in rows(one))]


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row.split("`")[1])
def test_every_setting_has_its_row(row: str) -> None:
    assert row in OPERATING.splitlines()


def test_no_row_is_of_a_setting_that_is_gone() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)`", OPERATING, re.MULTILINE))
    assert named == {row.split("`")[1] for row in EXPECTED} | LOG_VARIABLES


def children(group: click.Group) -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    assert None not in found.values()
    return {name: command for name, command in found.items() if command}


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, child in children(command).items():
            yield from leaves(child, (*path, name))
    else:
        yield " ".join(path)


@pytest.mark.parametrize("command", [*leaves(LazyGroup(), ("credhook",))])
def test_every_command_is_named(command: str) -> None:
    """Those of `credhook api` are named together."""
    assert f"`{'credhook api …' if command.startswith('credhook api ') else command}" in OPERATING


def test_every_command_explains_itself_and_all_its_options() -> None:
    def explained(command: click.Command) -> None:
        assert command.help, command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (command.name, parameter.name)
        if isinstance(command, click.Group):
            for child in children(command).values():
                explained(child)

    for command in children(LazyGroup()).values():
        explained(command)


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
def test_the_handler_on_the_first_page_ends_as_it_says_on_every_form_of_the_kit(form: dict[str, Any]) -> None:
    ((_, _, code),) = [example for example in EXAMPLES if example[0] == "README.md"]
    page: dict[str, Any] = {"__name__": "accounts"}
    exec(code, page)
    made: FetchedEvent[Any] = event(DATA, **form)
    result = run(page["open_account"], made)
    said = ("done", "") if made.details.trusted else ("dead", "the presentation is not valid")
    assert (result.outcome, result.cause) == said


@pytest.mark.parametrize(("name", "example"), [example[1:] for example in EXAMPLES if example[0] == "worker/README.md"])
def test_what_it_takes_from_a_package_stands_there(name: str, example: str) -> None:
    """Word for word, part for part; two empty lines stand between its parts."""
    (path,) = (ROOT / "tests" / "examples").glob(f"*/{name}")
    source = path.read_text()
    assert [part for part in example.strip().split("\n\n\n") if part not in source] == []


@pytest.mark.parametrize("option", Options.__annotations__)
def test_every_option_of_a_handler_has_its_row(option: str) -> None:
    assert f"\n| `{option}` | " in PAGES["worker/README.md"]


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_every_event_type_is_named(event_type: str) -> None:
    family, _, word = event_type.rpartition(".")
    (row,) = re.findall(rf"^\| `{family}\.` \| (.*)", PAGES["worker/README.md"], re.MULTILINE)
    assert f"`{word}`" in row


def test_the_first_page_is_one() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.(?:py|lua))`", PAGES["CONTRIBUTING.md"]))))
def test_every_file_on_the_map_exists(name: str) -> None:
    assert (ROOT / name).is_file() or list(ROOT.glob(f"[!.]*/**/{name}"))


@pytest.mark.parametrize(
    "target", sorted({target for text in PAGES.values() for target in re.findall(r"`make ([a-z]+)`", text)})
)
def test_every_make_target_in_it_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "path"),
    sorted({(page, path) for page, text in PAGES.items() for path in re.findall(r"\]\(([^)#:\"]+)\)", text)}),
)
def test_every_file_that_it_links_to_exists(page: str, path: str) -> None:
    assert ((ROOT / page).parent / path).exists()


@pytest.mark.parametrize(
    ("page", "anchor"),
    sorted({(page, anchor) for page, text in PAGES.items() for anchor in re.findall(r"\]\(#([^)]+)\)", text)}),
)
def test_every_heading_that_it_links_to_exists(page: str, anchor: str) -> None:
    headings = re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


SANDBOX = PAGES["sandbox/README.md"]
OURS = [operation for operation in OPERATIONS if operation.path.startswith("/sandbox/")]


@pytest.mark.parametrize("operation", OURS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_every_route_of_the_sandbox_alone_is_named(operation: SandboxOperation) -> None:
    assert f"{operation.method} {operation.path.replace(':path', '')}`" in SANDBOX


@pytest.mark.parametrize("name", [field.alias or name for name, field in Faults.model_fields.items()])
def test_every_fault_is_named(name: str) -> None:
    assert f"`{name}`" in SANDBOX


@pytest.mark.parametrize(
    "option", [each.opts[0] for each in sandbox.params if each.name not in {*Faults.model_fields, "env"}]
)
def test_every_option_of_the_sandbox_is_named(option: str) -> None:
    assert f"`{option}" in SANDBOX


def test_the_published_secret_is_the_one_in_use() -> None:
    assert SANDBOX_SECRET in SANDBOX
