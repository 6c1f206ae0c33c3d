"""README.md against the code: what is missing from it, or no longer true, fails here."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from credhook.cli import COMMANDS, LazyGroup
from credhook.receiver.settings import ReceiverSettings
from credhook.worker.settings import EndpointSettings, WorkerSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

#: Read before any settings are, by credhook/logs.py itself.
LOG_VARIABLES = {"CREDHOOK_LOG", "CREDHOOK_LOG_LEVEL"}


def rows(settings: type[BaseSettings]) -> Iterator[str]:
    """The README's row for each setting: name, default, meaning."""
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


EXPECTED = [*dict.fromkeys(row for one in (ReceiverSettings, WorkerSettings, EndpointSettings) for row in rows(one))]


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row.split("`")[1])
def test_every_setting_has_its_row(row: str) -> None:
    assert row in README.splitlines()


def test_no_row_is_of_a_setting_that_is_gone() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)`", README, re.MULTILINE))
    assert named == {row.split("`")[1] for row in EXPECTED} | LOG_VARIABLES


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from leaves(child, (*path, name))
    else:
        yield " ".join(path)


@pytest.mark.parametrize("command", [*leaves(LazyGroup(), ("credhook",))])
def test_every_command_is_named(command: str) -> None:
    assert f"`{command}" in README


def test_every_command_explains_itself_and_all_its_options() -> None:
    def explained(command: click.Command) -> None:
        assert command.help, command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (command.name, parameter.name)
        for child in getattr(command, "commands", {}).values():
            explained(child)

    group = LazyGroup()
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        explained(command)


def test_the_handler_in_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from credhook.worker.handlers.registry import load  # noqa: PLC0415  Only this test needs it.

    (code,) = re.findall(r"^```python\n(# accounts\.py\n.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "readme_accounts.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert [one.name for one in load(["readme_accounts"]).handlers] == ["accounts.open_account"]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z]+)`", README))))
def test_every_make_target_in_it_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([A-Za-z][^)#:]*)\)", README))))
def test_every_file_that_it_links_to_exists(path: str) -> None:
    assert (ROOT / path).exists()
