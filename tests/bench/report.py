"""Results: rounds of figures in JSON, their tables for a terminal and for the README, and plots of the tables.

`python -m bench.report` puts the tables of a run into tests/bench/README.md: what stands between `<!-- ingest -->` and
`<!-- /ingest -->` is replaced by ingest.md, and so on for each part. It puts the plots beside the README.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, TypeVar

import click
from bench import machine
from bench.machine import HERE, SCRATCH, RunFailed, say

T = TypeVar("T")

#: The columns of a sheet of targets.
TARGETS: Final = ["figure", "to reach", "reached", "met"]

#: One dict of figures for each round.
Rounds: TypeAlias = Sequence[Mapping[str, Any]]

#: How often a spoilt run is repeated: one stalled disk must not lose all figures.
_AGAIN: Final = 2

#: Height of a row of a plot, in pixels, as below.
_ROW: Final = 28
#: Width of a letter of a label.
_LETTER: Final = 8
#: Length of the longest bar.
_LONGEST: Final = 430
#: Width of the figure beside a bar.
_FIGURE: Final = 70
#: Colour of credhook's bars. A plot has no background: each colour can be read on a white page and on a black page.
_OURS: Final = "#2f81d7"
#: Colour of other bars.
_PEERS: Final = "#8c959f"
#: Colour of labels and figures.
_TEXT: Final = "#75808a"

OUT: Final = click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder for the results.  [default: .credhook/bench/results]",
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its title, the names of its columns, its rows. `plot` names the file of its plot, if it has a plot."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    plot: str = ""


def middle(rounds: Rounds, figure: str) -> float:
    return float(median(one[figure] for one in rounds))


def ranking(
    title: str, rate: str, names: Mapping[str, str], field: Mapping[str, Rounds], ours: Callable[[str], str], plot: str
) -> Sheet:
    """Return the competitors' table, the fastest first. `ours` names the credhook beside a competitor."""
    rows = []
    for name, rounds in sorted(field.items(), key=lambda item: -middle(item[1], "rate")):
        ratio = f"{middle(field[ours(name)], 'rate') / middle(rounds, 'rate'):.2f}" if ours(name) in field else ""
        rates = [one["rate"] for one in rounds]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        costs = (middle(rounds, "cpu"), middle(rounds, "redis"), max(one["peak"] for one in rounds))
        rows.append([names[name], f"{median(rates):,.0f}", spread, ratio, *(f"{cost:,.0f}" for cost in costs)])
    columns = ["competitor", rate, "rounds", "credhook / it", "µs each", "Redis, µs each", "MiB"]
    return Sheet(title, columns, rows, plot)


def _figure(row: Sequence[str]) -> float:
    return float(row[1].replace(",", ""))


def bars(sheet: Sheet) -> str:
    """Return an SVG with a bar for each row, as long as the figure in the second column."""
    figures = [_figure(row) for row in sheet.rows]
    left = _LETTER * max(len(row[0]) for row in sheet.rows) + 10
    width, height = left + _LONGEST + _FIGURE, _ROW * len(figures)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(f'{sheet.title}: {sheet.columns[1]}')}</title>",
        f'<g font-family="system-ui, sans-serif" font-size="14" fill="{_TEXT}">',
    ]
    for number, (row, figure) in enumerate(zip(sheet.rows, figures, strict=True)):
        top = number * _ROW
        length = _LONGEST * figure / max(figures)
        colour = _OURS if row[0].startswith("credhook") else _PEERS
        lines += [
            f'<text x="{left - 10}" y="{top + 19}" text-anchor="end">{escape(row[0])}</text>',
            f'<rect x="{left}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}" fill="{colour}"/>',
            f'<text x="{left + length + 8:.1f}" y="{top + 19}">{escape(row[1])}</text>',
        ]
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def target(what: str, reached: float, *, least: float = -math.inf, most: float = math.inf) -> list[str]:
    """Return a target's row."""
    bound = f"≥ {least:g}" if most == math.inf else f"≤ {most:g}"
    return [what, bound, f"{reached:.2f}", "yes" if least <= reached <= most else "NO"]


@contextmanager
def measuring(name: str, out: Path, results: dict[str, Any]) -> Iterator[Path]:
    """Run the block on the load's cores, with a folder for its files, and write the results even if a run fails."""
    out.mkdir(parents=True, exist_ok=True)
    with machine.on(machine.LOAD), TemporaryDirectory(prefix="runs-", dir=out) as folder:
        try:
            yield Path(folder)
        except RunFailed as error:
            raise click.ClickException(str(error)) from error
        finally:
            (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def taking_turns(rounds: int, competitors: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Yield every competitor once a round. Each round begins with another one."""
    for number in range(rounds):
        turn = number % len(competitors)
        for competitor in (*competitors[turn:], *competitors[:turn]):
            yield f"round {number + 1}", competitor


def measured(folder: Path, measure: Callable[[Path], T], again: int = _AGAIN) -> T:
    """Call `measure` with an empty folder. Repeat a run that was spoilt."""
    with TemporaryDirectory(dir=folder) as empty:
        try:
            return measure(Path(empty))
        except RunFailed as error:
            if not again:
                raise
            say(f"{error}; once more")
    return measured(folder, measure, again - 1)


def publish(name: str, out: Path, setting: Mapping[str, str], sheets: Iterable[Sheet]) -> None:
    """Print the tables, and write them to `name`.md for the README, with their plots beside it."""
    lines = [f"- {key}: {line}" for key, line in setting.items()]
    for sheet in sheets:
        rule = ["---", *["---:"] * (len(sheet.columns) - 1)]
        lines += ["", f"{sheet.title}:", ""]
        if sheet.plot and sheet.rows:
            (out / f"{sheet.plot}.svg").write_text(bars(sheet))
            longest = " with ".join(max(sheet.rows, key=_figure)[:2])
            alt = f"A bar for each row: {sheet.columns[1]} at {setting['commit']}. The longest is {longest}."
            lines += [f"![{alt}]({sheet.plot}.svg)", ""]
        lines += [f"| {' | '.join(row)} |" for row in (sheet.columns, rule, *sheet.rows)]
    text = "\n".join(lines) + "\n"
    click.echo(text)
    (out / f"{name}.md").write_text(text)


@click.command()
@OUT
def main(*, out: Path) -> None:
    """Put the figures of a run into the README, without our bounds: these are for those who measure."""
    readme = HERE / "README.md"
    page = readme.read_text()
    for part in ("ingest", "work", "growth", "start", "sizing"):
        if (out / f"{part}.md").exists():
            before, begin, rest = page.partition(f"<!-- {part} -->\n")
            _, end, after = rest.partition(f"<!-- /{part} -->")
            page = before + begin + (out / f"{part}.md").read_text().partition("\nTargets:")[0] + end + after
    readme.write_text(page)
    for plot in out.glob("*.svg"):
        shutil.copy(plot, HERE)


if __name__ == "__main__":
    main()
