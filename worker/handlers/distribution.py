"""Which installed distribution, in which version, a plugin's code comes from."""

from functools import cache
from importlib.metadata import Distribution, distributions, packages_distributions, version
from typing import Final

_GROUP: Final = "credhook.handlers"


@cache
def distribution(module: str) -> str:
    """The distribution that a module belongs to, `accounts 1.2.3`; empty for code that nobody has installed."""
    package = module.partition(".")[0]
    # What is installed to be edited does not say what it holds, save by its entry points.
    declared = (one for one in distributions() if _offers(one, package))
    name = next((one.metadata["Name"] for one in declared), None) or next(
        iter(packages_distributions().get(package, ())), None
    )
    return f"{name} {version(name)}" if name else ""


def _offers(one: Distribution, package: str) -> bool:
    return any(point.group == _GROUP and point.module.partition(".")[0] == package for point in one.entry_points)
