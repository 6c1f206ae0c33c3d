"""The end of a command: its code, its output, and whether the interpreter is finalized."""

import subprocess
import sys

import pytest

#: The interpreter prints the last word as it is finalized.
PROGRAM = """
import atexit, importlib, sys, click
from credhook import cli

@click.command()
@click.argument("code")
def ending(code: str) -> None:
    click.echo("said")
    sys.exit(None if code == "none" else int(code) if code.isdigit() else code)

cli.cli.get_command = lambda *_: ending
atexit.register(print, "finalized")
importlib.import_module(sys.argv[2])
cli.run(["ending", sys.argv[1]])
"""


@pytest.mark.parametrize(("loaded", "last"), [("pyreqwest", ""), ("json", "finalized\n")])
@pytest.mark.parametrize(("ends_with", "code", "error"), [("none", 0, ""), ("3", 3, ""), ("a reason", 1, "a reason\n")])
def test_a_command_ends_with_its_code_and_finalizes_nothing_if_it_has_loaded_the_api_client(
    loaded: str, last: str, ends_with: str, code: int, error: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, ends_with, loaded]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, f"said\n{last}", error)
