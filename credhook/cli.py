"""The command line: one line per command. A command's module is imported only when the command runs.

Every process starts here: logs are configured, and an error becomes one line and an exit code.

Exit codes: 0 done; 1 failed; 2 wrong usage or a wrong setting; 3 (only `endpoints plan`) there is a difference.
"""

import errno
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from credhook.terminal import prepare_streams

#: Name → the module in which the command has this name, and the line that `credhook --help` prints without an import.
COMMANDS: Final = {
    "receiver": ("credhook.receiver.command", "Accept deliveries: verify, deduplicate, store, acknowledge."),
    "worker": ("credhook.worker.commands.worker", "Fetch what each event refers to and run the handlers."),
    "endpoints": (
        "credhook.worker.commands.endpoints",
        "List, plan, apply and delete the platform's webhook endpoints.",
    ),
    "handlers": ("credhook.worker.commands.endpoints", "Show which handlers are loaded, and for which types."),
    "events": ("credhook.worker.commands.events", "List, show, watch, replay and erase events; backfill missing ones."),
    "causes": ("credhook.worker.commands.events", "Show why attempts fail, one line per cause."),
    "status": ("credhook.ops.status", "Show the state of the fleet, and what needs attention."),
    "doctor": ("credhook.ops.doctor", "Try everything that receivers and workers depend on."),
    "console": ("credhook.console.command", "Serve web pages that show events and act on them."),
    "api": ("credhook.worker.commands.api", "Call the platform's API, JSON in and out."),
    "sandbox": ("credhook.sandbox.command", "Run a simulated platform on this machine."),
    "trigger": ("credhook.sandbox.command", "Make the sandbox's platform send events."),
    "new": ("credhook.scaffold.new", "Create a package with a working handler and its test."),
    "dev": ("credhook.sandbox.local.dev", "Run your handlers with Redis, receiver and sandbox; reload on save."),
    "demo": ("credhook.sandbox.local.demo", "Run every part on this machine, one event of each type."),
}

#: The disk is full, or the user's share of it, or a file is as large as it may be.
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

#: Commands for a second terminal beside `credhook dev`.
_BESIDE_DEV: Final = ("endpoints", "handlers", "events", "causes", "status", "doctor", "console", "api", "trigger")

#: The packages of the extra `local`. Messages name each of them, since `credhook[local]` is on no package index.
LOCAL_PACKAGES: Final = ("blockbuster", "trustme", "watchfiles")


class LazyGroup(click.Group):
    """The commands of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  Click passes it.
        """Return the names, in the order in which an event passes the parts."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


_PACKAGE: Final = Path(__file__).parent
#: The folder of deploy/README.md and worker/README.md: the installed package, or the checkout.
_DOCUMENTS: Final = _PACKAGE if (_PACKAGE / "deploy").is_dir() else _PACKAGE.parent


@click.command(
    cls=LazyGroup,
    help=f"""The inbox for a credential platform's webhooks.

    The receiver stores the events that the platform posts. Workers fetch their details and run your handlers. Every
    command reads its settings from the environment; deploy/README.md lists them, and worker/README.md is for authors of
    handlers. Both are in

    \b
    {_DOCUMENTS}
    """,
)
@click.version_option(package_name="credhook")
def cli() -> None:
    """Run a command."""


def main(args: list[str] | None = None) -> None:
    """Run a command and exit with its code."""
    prepare_streams()
    if os.getpid() == 1:  # Of a container. The kernel drops signals that its first process does not handle.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = sys.argv[1:] if args is None else args
    try:
        if COMMANDS.keys().isdisjoint(words[:1]):  # Help and version need no settings, whose import takes 0.2 s.
            cli(words, prog_name="credhook")
        else:
            _run_command(words)
    except KeyboardInterrupt:  # During an import. Otherwise click has handled it, with the same words and code.
        click.echo("Aborted!", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        click.echo(f"credhook: cannot write {error.filename or 'the output'}: {error.strerror}", err=True)
        os._exit(1)  # Python would try to write the rest of the output, and print a traceback.


def _run_command(words: list[str]) -> None:
    import structlog
    from pydantic import ValidationError

    from credhook.logs import configure_logs
    from credhook.settings import correction, join_dev_session, names_set, settings_errors, unknown_settings

    try:
        if words[0] in _BESIDE_DEV:
            join_dev_session(unless="REDIS_URL")
        configure_logs()
        is_child = {"--fd", "--supervised"}.intersection(words)
        names = () if is_child else unknown_settings(names_set())  # The parent has named them.
        if names:
            structlog.get_logger("credhook").warning("unknown_settings", hint="; ".join(map(correction, names)))
        cli(words, prog_name="credhook")
    except ValidationError as invalid:
        if not invalid.title.endswith("Settings"):
            raise
        for line in settings_errors(invalid):
            click.echo(f"credhook: {line}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in LOCAL_PACKAGES:
            raise
        click.echo(f"credhook: {missing.name} is not installed: pip install {' '.join(LOCAL_PACKAGES)}", err=True)
        sys.exit(1)
