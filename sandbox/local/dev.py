"""`credhook dev`: Redis, the platform, receiver and worker around the author's handlers, from any folder."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from credhook.sandbox.local.dev_session import DevSession, keyboard, watched
from credhook.sandbox.local.environment import CREDHOOK, CannotStart, LocalEnvironment, Stopped, started, stoppable
from credhook.sandbox.local.local_redis import NoRedis

#: The entry point group under which a package offers its handlers.
_GROUP: Final = "credhook.handlers"


@click.command()
@click.argument("modules", metavar="[MODULE]...", nargs=-1)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The receiver's. Default: a free one.")
@click.option(
    "--to-platform",
    "public_url",
    metavar="URL",
    help="Leave the sandbox out: register this https URL, which leads to the receiver, with the platform that the "
    "environment names, and delete it at the end. The receiver then speaks HTTP, for a tunnel that brings TLS.",
)
def dev(*, modules: tuple[str, ...], port: int, public_url: str | None) -> None:
    """Run your handlers with everything around them, show the result of each event, restart them when saved.

    MODULE holds a `Handlers`, as in CREDHOOK_HANDLERS. Without one, dev takes the handlers of pyproject.toml or
    handlers.py in the current folder. Starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on HTTPS,
    and a worker. Ctrl-C stops them; nothing is left.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    here = Path.cwd()
    try:
        chosen = choose(modules, os.environ, here)
        with stoppable():
            _run(chosen, here, port, public_url, console)
    except (NoRedis, CannotStart) as error:
        raise click.ClickException(str(error)) from error
    except Stopped:
        pass
    console.print("stopped; nothing is left running")


def _run(modules: "HandlerModules", here: Path, port: int, public_url: str | None, console: Console) -> None:
    """Start everything, and stop it in the reverse order: the worker first, Redis last."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_TLS_")}
    own |= {"CREDHOOK_PUBLIC_URL": public_url} if public_url else {}
    with ExitStack() as stack:
        saves = stack.enter_context(watched(modules.folders(here)))
        options = None if public_url else ()
        local = stack.enter_context(started(own_handlers=True, sandbox=options, port=port, environ=own))
        local.start("receiver", *CREDHOOK, "receiver", CREDHOOK_LOG="json")
        if public_url is None:
            local.run(*CREDHOOK, "endpoints", "apply", "--all")  # While the receiver starts.
        local.wait_for("receiver", f"{local.receiver_url}/readyz")
        if public_url:
            stack.enter_context(_registered(local, public_url))
        keys = stack.enter_context(keyboard())
        session = DevSession(local, modules.names, saves, keys, console)
        stack.callback(session.stop_worker)
        _introduce(local, modules, public_url, console)
        session.show_keys()
        session.run()


def _introduce(local: LocalEnvironment, modules: "HandlerModules", public_url: str | None, console: Console) -> None:
    if modules.names:
        lines = [f"handlers   {', '.join(modules.names)}, named by {modules.source}; saved, they start anew"]
    else:
        lines = ["handlers   none are named: a built-in one logs each event. Name yours: credhook dev accounts"]
    lines.append(f"receiver   {local.receiver_url}/webhooks")
    lines.append(f"platform   {local.sandbox_url or f'delivers to {public_url} until you stop'}")
    lines.append(f"settings   set -a; . {local.write_environment()}; set +a")
    lines.append("stop       Ctrl-C")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _registered(local: LocalEnvironment, url: str) -> Iterator[None]:
    """Register a URL with the platform, and delete the registration at the end.

    Raises:
        CannotStart: The platform refuses, or the URL is registered already.
    """

    def registrations() -> list[str]:
        listed = json.loads(local.run(*CREDHOOK, "api", "endpoints", "list"))
        return [endpoint["id"] for endpoint in listed if endpoint["url"] == url]

    if ids := registrations():
        raise CannotStart(f"the platform delivers to this URL already: `credhook endpoints delete {ids[0]}` ends that")
    try:
        local.run(*CREDHOOK, "endpoints", "apply", "--all")
        yield
    finally:
        for endpoint_id in registrations():
            local.run(*CREDHOOK, "endpoints", "delete", endpoint_id)


@dataclass(frozen=True)
class HandlerModules:
    """The author's modules, as `CREDHOOK_HANDLERS` takes them, and their source. Without any, events are logged."""

    names: tuple[str, ...]
    source: str

    def folders(self, here: Path) -> tuple[Path, ...]:
        """Return what to watch: the current folder, and modules and packages that are elsewhere."""
        found: list[Path] = []
        for name in self.names:
            spec = PathFinder.find_spec(re.split(r"[.:]", name)[0], [*sys.path, str(here)])
            if spec is not None:
                found += map(Path, spec.submodule_search_locations or filter(None, [spec.origin]))
        elsewhere = (place for place in dict.fromkeys(found) if not place.is_relative_to(here))
        return (here, *elsewhere) if self.names else ()


def choose(named: Sequence[str], environ: Mapping[str, str], here: Path) -> HandlerModules:
    """Return the named modules, or else the first that the environment, the folder or the installation offers.

    Raises:
        click.BadParameter: A name is not that of a module.
        CannotStart: pyproject.toml cannot be read.
    """
    for name in named:
        if name.endswith(".py") or not re.fullmatch(r"\w+(\.\w+)*(:\w+(\.\w+)*)?", name):
            raise click.BadParameter(f"{name!r} is no module; name it as in an import", param_hint="MODULE")
    for names, source in _offers(named, environ, here):
        if names:
            return HandlerModules(names, source)
    return HandlerModules((), "")


def _offers(named: Sequence[str], environ: Mapping[str, str], here: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    yield tuple(named), "the command line"
    variable = environ.get("CREDHOOK_HANDLERS", "")
    yield tuple(part.strip() for part in variable.split(",") if part.strip()), "CREDHOOK_HANDLERS"
    yield _in_project(here / "pyproject.toml"), "pyproject.toml"
    yield ("handlers",) if (here / "handlers.py").is_file() else (), "handlers.py"
    yield tuple(entry.value for entry in entry_points(group=_GROUP)), "an installed package"


def _in_project(path: Path) -> tuple[str, ...]:
    try:
        project: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(map(str, project["project"]["entry-points"][_GROUP].values()))
    except (FileNotFoundError, KeyError):
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CannotStart(f"pyproject.toml cannot be read: {error}") from error
