"""Shell completion, which is click's own."""

import pytest

from support.process import commands


@pytest.mark.parametrize(("typed", "completed"), [("end", "endpoints"), ("events list --res", "--resource")])
def test_commands_and_options_are_completed(typed: str, completed: str) -> None:
    words = f"credhook {typed}"
    cursor = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    environment = {"_CREDHOOK_COMPLETE": "bash_complete", **cursor}
    done = commands.invoke(environment=environment)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == [completed]
