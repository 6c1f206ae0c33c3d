"""Tables, for a terminal and for the README."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: a title, the names of its columns, its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def show(setting: Mapping[str, str], sheets: Iterable[Sheet], console: Console) -> None:
    """Print what was measured, and on what."""
    for name, line in setting.items():
        console.print(f"[bold]{name}[/]: {line}", highlight=False)
    for sheet in sheets:
        table = Table(title=sheet.title, title_justify="left")
        for number, column in enumerate(sheet.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)


def markdown(setting: Mapping[str, str], sheets: Iterable[Sheet]) -> str:
    """The same for the README."""
    lines = [f"- {name}: {line}" for name, line in setting.items()]
    for sheet in sheets:
        lines += ["", f"{sheet.title}:", "", _line(sheet.columns), _line(["---", *["---:"] * (len(sheet.columns) - 1)])]
        lines += [_line(row) for row in sheet.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
