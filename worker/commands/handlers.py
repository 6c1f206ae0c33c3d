"""`credhook handlers`: which plugins are loaded, and for what."""

import sys

import click
from rich.console import Console
from rich.table import Table

from credhook.events import EVENT_TYPES
from credhook.worker.handlers.loading import load
from credhook.worker.settings import HandlerSettings


@click.group()
def handlers() -> None:
    """Show which handlers are loaded, and for which types."""


@handlers.command("list")
def list_handlers() -> None:
    """Print each loaded handler with its event types."""
    registry = load(HandlerSettings().handlers)
    if not registry.handlers:
        click.echo("no handlers are loaded")
    table = Table("handler", "runs as", "event types")
    for one in registry.handlers:
        types = "all" if len(one.types) == len(EVENT_TYPES) else "\n".join(t for t in EVENT_TYPES if t in one.types)
        table.add_row(one.name, "coroutine" if one.is_async else "thread", types)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
