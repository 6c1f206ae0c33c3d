"""`credhook new`: create a folder with a working handler and its test."""

import importlib.util
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

import click

#: A valid name of both a distribution and a module.
_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]{0,62}[A-Za-z0-9])?")

#: File in the new folder → template.
_FILES: Final = {
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    ".gitignore": "gitignore.template",
    "{name}.py": "handlers.py.template",
    "test_{name}.py": "test_handlers.py.template",
}


class _WrongName(click.ClickException):
    """The name cannot be used for a new module. The message says why."""

    exit_code = 2


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Create the folder NAME with a working handler, its test, and a README."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise _WrongName(f"{name!r} is not a name for a module: use letters, digits and _, such as my_handlers")
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:  # A plain folder has no origin and does not count.
        raise _WrongName(f"{name!r} is a module that is installed here, which yours would hide: choose another name")
    folder, templates = Path(name), files(__package__) / "templates"
    try:
        folder.mkdir()
        for path, template in _FILES.items():
            text = Template((templates / template).read_text(encoding="utf-8")).substitute(name=name)
            (folder / path.format(name=name)).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise click.ClickException(f"{name} exists already: choose another name, or move it away") from None
    except OSError as error:
        raise click.ClickException(f"{name} cannot be written here: {error.strerror}") from error
    click.echo(f"{name}/ holds a handler and its test; {name}/README.md says more\n\n    cd {name} && credhook dev")
