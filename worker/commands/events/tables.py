"""Events as tables, for people."""

import json
import sys
from collections import Counter
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from credhook.worker.commands.events.selection import EventSummary


def print_counts(found: Iterable[EventSummary], *, as_json: bool) -> None:
    """Print how many events there are of each state and type."""
    counts = sorted(Counter((one.state, one.type) for one in found).items())
    if as_json:
        for (state, kind), number in counts:
            click.echo(json.dumps({"state": state, "type": kind, "events": number}))
        return
    table = Table("state", "type", "events", show_footer=True)
    table.columns[2].justify, table.columns[2].footer = "right", str(sum(number for _, number in counts))
    for (state, kind), number in counts:
        table.add_row(Text(state), Text(kind), str(number))
    print_table(table)


def print_table(table: Table) -> None:
    """Print it as wide as the terminal, or wide enough for a pipe."""
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def plain(text: str) -> Text:
    """The text as a cell of a table: neither markup, nor what a terminal would obey."""
    return Text("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))
