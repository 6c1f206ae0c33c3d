"""`python -m bench.readme`: put the tables of a run into tests/bench/README.md.

The text between `<!-- ingest -->` and `<!-- /ingest -->` is replaced by ingest.md, and so on for each part.
"""

from pathlib import Path

import click
from bench import report
from bench.environments import HERE


@click.command()
@report.OUT
@click.option("--readme", default=HERE / "README.md", type=click.Path(dir_okay=False, path_type=Path))
def main(*, out: Path, readme: Path) -> None:
    """Put the figures of a run into the README."""
    page = readme.read_text()
    parts = [part for part in ("ingest", "work", "sizing") if (out / f"{part}.md").exists()]
    if not parts:
        raise click.ClickException(f"no results in {out}: run `make bench` first")
    for part in parts:
        before, begin, rest = page.partition(f"<!-- {part} -->\n")
        _, end, after = rest.partition(f"<!-- /{part} -->")
        if not end:
            raise click.ClickException(f"{readme} has no place for {part}: restore its two comments")
        page = before + begin + (out / f"{part}.md").read_text() + end + after
    readme.write_text(page)
    click.echo(f"{readme}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
