"""`python -m bench.readme`: put the tables of a run into tests/bench/README.md.

The text around them is the README's own; what stands between `<!-- ingest -->` and `<!-- /ingest -->` is replaced by
ingest.md, and so on for each part whose results are in the folder.
"""

from pathlib import Path
from typing import Final

import click
from bench.environments import HERE, SCRATCH

PARTS: Final = ("ingest", "work", "sizing")


@click.command()
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Folder with the results.  [default: .credhook/bench/results]",
)
@click.option("--readme", default=HERE / "README.md", type=click.Path(dir_okay=False, path_type=Path))
def main(*, out: Path, readme: Path) -> None:
    """Put the figures of a run into the README."""
    texts = {part: (out / f"{part}.md").read_text() for part in PARTS if (out / f"{part}.md").exists()}
    if not texts:
        raise click.ClickException(f"no results in {out}: run `make bench` first")
    readme.write_text(filled(readme.read_text(), texts))
    click.echo(f"{readme}: {', '.join(texts)}")


def filled(page: str, texts: dict[str, str]) -> str:
    """The page with each part's text in its place.

    Raises:
        click.ClickException: it has no place for one.
    """
    for part, text in texts.items():
        begin, end = f"<!-- {part} -->\n", f"<!-- /{part} -->"
        before, _, rest = page.partition(begin)
        _, there, after = rest.partition(end)
        if not there:
            raise click.ClickException(f"the README has no place for {part}: write {begin.strip()} and {end} into it")
        page = before + begin + text + end + after
    return page


if __name__ == "__main__":
    main()
