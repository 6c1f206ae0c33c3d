"""Shell completion, which is click's own: the one line of deploy/README.md, and what it then completes."""

import pytest

from support.checkout import ROOT
from support.process import commands


@pytest.mark.parametrize(("typed", "completed"), [("end", "endpoints"), ("events list --res", "--resource")])
def test_commands_and_options_are_completed(typed: str, completed: str) -> None:
    assert "_CREDHOOK_COMPLETE=bash_source" in (ROOT / "deploy" / "README.md").read_text()
    words = f"credhook {typed}"
    cursor = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    environment = {"_CREDHOOK_COMPLETE": "bash_complete", **cursor}
    done = commands.credhook(environment=environment)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == [completed]
