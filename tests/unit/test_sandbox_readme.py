"""The README names every route, fault and option."""

from pathlib import Path

import pytest

from credhook.sandbox import app as _app  # noqa: F401  It registers every operation.
from credhook.sandbox.command import sandbox
from credhook.sandbox.deliveries import SANDBOX_SECRET
from credhook.sandbox.operations import OPERATIONS, SandboxOperation
from credhook.sandbox.tenant import Faults

README = (Path(__file__).parents[2] / "sandbox" / "README.md").read_text(encoding="utf-8")


OURS = [operation for operation in OPERATIONS if operation.path.startswith("/sandbox/")]


@pytest.mark.parametrize("operation", OURS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_every_route_of_our_own_is_in_the_readme(operation: SandboxOperation) -> None:
    assert f"{operation.method} {operation.path.replace(':path', '')}`" in README


@pytest.mark.parametrize("name", [field.alias or name for name, field in Faults.model_fields.items()])
def test_every_fault_is_in_the_readme(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize(
    "option", [each.opts[0] for each in sandbox.params if each.name not in {*Faults.model_fields, "env"}]
)
def test_every_option_is_in_the_readme(option: str) -> None:
    assert f"`{option}" in README


def test_the_published_secret_is_the_one_in_use() -> None:
    assert SANDBOX_SECRET in README
