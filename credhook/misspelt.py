"""Variables that begin as our settings do and are none: nothing reads them, and whoever has set one should hear it."""

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

_PREFIX: Final = "CREDHOOK_"
#: Where settings are defined. They are read as text: imported, those of all processes would cost each half a second.
_DEFINED_IN: Final = (
    "settings.py",
    "console/settings.py",
    "logs/__init__.py",
    "logs/development.py",
    "receiver/settings.py",
    "worker/settings.py",
    "sandbox/command.py",
)
_QUOTED: Final = rf'"({_PREFIX}[A-Z_]+)"'
#: What Kubernetes sets in every container for a Service whose name begins with `credhook`.
_OF_KUBERNETES: Final = rf"{_PREFIX}(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)"


@cache
def known() -> frozenset[str]:
    """All variables that any of our processes reads, of those with our prefix; none where our source is not there."""
    files = [path for file in _DEFINED_IN if (path := Path(__file__).parent / file).exists()]
    return frozenset(name for path in files for name in re.findall(_QUOTED, path.read_text("utf-8")))


def misspelt(environment: Iterable[str]) -> list[str]:
    """The names in the environment that look like settings of ours and are none."""
    ours = [name for name in environment if name.upper().startswith(_PREFIX)]
    if not ours or not known():
        return []
    return sorted(
        name for name in ours if name.upper() not in known() and not re.fullmatch(_OF_KUBERNETES, name.upper())
    )


def correction(name: str) -> str:
    """What to say of such a name: that it is none, and which setting it may be meant for."""
    near = import_module("difflib").get_close_matches(name.upper(), sorted(known()), n=1, cutoff=0.8)
    return f"{name} is not a setting; " + (f"did you mean {near[0]}?" if near else "deploy/README.md lists them")
