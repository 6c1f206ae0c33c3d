"""The end of a command: its code and its output, and nothing after them."""

import subprocess
import sys

import pytest

#: The interpreter would print the last word while it is finalized.
PROGRAM = """
import atexit, sys, click
from credhook import cli

@click.command()
@click.argument("code")
def ending(code: str) -> None:
    click.echo("said")
    sys.exit(None if code == "none" else int(code) if code.isdigit() else code)

cli.cli.get_command = lambda *_: ending
atexit.register(print, "finalized")
cli.run(["ending", sys.argv[1]])
"""


@pytest.mark.parametrize(
    ("ends_with", "code", "error"),
    [("none", 0, ""), ("0", 0, ""), ("3", 3, ""), ("no such thing", 1, "no such thing\n")],
)
def test_a_command_ends_with_its_code_before_the_interpreter_is_finalized(
    ends_with: str, code: int, error: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ends_with], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "said\n", error)
