"""Which of our extras brings a module that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

#: A requirement of an extra, as packages state it.
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*).*\bextra *== *[\"']([A-Za-z0-9_-]+)[\"']")


def extra_with(module: str) -> str:
    """The extra that installs the module; empty where none of ours does."""
    try:
        requirements = requires("credhook") or []
    except PackageNotFoundError:  # Started from a folder that is installed nowhere.
        return ""
    return _extra_with(module, requirements)


def _extra_with(module: str, requirements: list[str]) -> str:
    top = module.partition(".")[0].replace("_", "-").lower()
    for found in map(_REQUIREMENT.match, requirements):
        if found and f"{found[1].replace('_', '-').lower()}-".startswith(f"{top}-"):
            return found[2]
    return ""
