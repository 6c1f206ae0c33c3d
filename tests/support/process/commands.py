"""`credhook …` as an operator types it, in a process that starts at once."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.checkout import ROOT
from support.process import forked_process

#: What a command has left: `returncode`, `stdout`, `stderr`.
Done = subprocess.CompletedProcess[str]


def credhook(*arguments: str, environment: Mapping[str, str], folder: Path = ROOT) -> Done:
    """Run `credhook …` in a folder, with nothing but this in its environment."""
    return forked_process.run("-m", "credhook", *arguments, env=environment, cwd=folder)
