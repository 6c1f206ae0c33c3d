"""`credhook dev`: Redis, the platform, receiver and worker around the author's handlers, from any folder."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from credhook.sandbox.dev.keys import keyboard
from credhook.sandbox.dev.modules import Modules, NoModule, choose
from credhook.sandbox.dev.registration import registered
from credhook.sandbox.dev.saves import watched
from credhook.sandbox.dev.session import Session
from credhook.sandbox.dev.worker import Worker
from credhook.sandbox.local.environment import CREDHOOK, CannotStart, LocalEnvironment, started
from credhook.sandbox.local.local_redis import NoRedis
from credhook.sandbox.local.stopping import Stopped, stoppable


@click.command()
@click.argument("modules", metavar="[MODULE]...", nargs=-1)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The receiver's. Default: a free one.")
@click.option(
    "--to-platform",
    "public_url",
    metavar="URL",
    help="Leave the sandbox out: register this https URL, which leads to the receiver, with the platform that the "
    "environment names, and take it away at the end. The receiver then speaks HTTP, for a tunnel that brings TLS.",
)
def dev(*, modules: tuple[str, ...], port: int, public_url: str | None) -> None:
    """Run your handlers with all that is around them, show what becomes of each event, restart them when saved.

    MODULE holds a `Handlers`, as in CREDHOOK_HANDLERS; without one, what pyproject.toml or handlers.py in the current
    folder offers. Starts a Redis (unless REDIS_URL names one), the sandbox, the receiver on HTTPS, and a worker. Ctrl-C
    ends them; nothing is left.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    here = Path.cwd()
    try:
        chosen = choose(modules, os.environ, here)
        with stoppable():
            _run(chosen, here, port, public_url, console)
    except NoModule as error:
        raise click.BadParameter(str(error), param_hint="MODULE") from error
    except (NoRedis, CannotStart) as error:
        raise click.ClickException(str(error)) from error
    except Stopped:
        pass
    console.print("stopped; nothing is left running")


def _run(modules: Modules, here: Path, port: int, public_url: str | None, console: Console) -> None:
    """Start everything, and end it in the reverse order: the worker first, Redis last."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_TLS_")}
    with ExitStack() as stack:
        saves = stack.enter_context(watched(modules.folders(here)))
        if public_url is None:
            local = stack.enter_context(started(own_handlers=True, sandbox=(), port=port, environ=own))
        else:
            own["CREDHOOK_PUBLIC_URL"] = public_url
            local = stack.enter_context(started(own_handlers=True, sandbox=None, port=port, environ=own))
        local.start("receiver", *CREDHOOK, "receiver", CREDHOOK_LOG="json")
        if public_url is None:
            local.run(*CREDHOOK, "endpoints", "apply", "--all")  # While the receiver starts.
        local.wait_for("receiver", f"{local.receiver_url}/readyz")
        if public_url is not None:
            stack.enter_context(registered(local, public_url))
        keys = stack.enter_context(keyboard())
        session = Session(local, Worker(local, modules.names), saves, keys, console)
        stack.callback(session.finish)
        _introduce(local, modules, public_url, console)
        session.show_keys()
        session.run()


def _introduce(local: LocalEnvironment, modules: Modules, public_url: str | None, console: Console) -> None:
    """Where everything is."""
    if modules.names:
        lines = [f"handlers   {', '.join(modules.names)}, named by {modules.source}; saved, they start anew"]
    else:
        lines = ["handlers   none are named: a built-in one logs each event. Name yours: credhook dev accounts"]
    lines.append(f"receiver   {local.receiver_url}/webhooks")
    lines.append(f"platform   {local.sandbox_url or f'delivers to {public_url} until you stop'}")
    lines.append(f"settings   set -a; . {local.write_environment()}; set +a")
    lines.append("stop       Ctrl-C")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
