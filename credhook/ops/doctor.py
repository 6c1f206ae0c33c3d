"""`credhook doctor`: every check, a line each, for people and (`--json`) for programs."""

import functools
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from credhook.ops import doctor_redis, platform, public_url, settings
from credhook.ops.finding import Finding, Verdict
from credhook.ops.setup import DAYS, Setup
from credhook.ops.themes import Theme, examine

#: Of which theme, what to look at where it does not end.
_LATE: Final = {
    "redis": "see whether Redis, or the way there, is too slow",
    "platform": "see whether handlers take long to import, or a name server does not answer",
    "public_url": "see whether a name server does not answer",
}


@click.command()
@click.option(
    "--days",
    type=click.IntRange(0),
    default=DAYS,
    show_default=True,
    help="For how long certificates should still be valid.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def doctor(*, days: int, as_json: bool) -> None:
    """Try everything that receiver and workers depend on, and say what to do about what is wrong.

    It goes by the settings that are there: a receiver's host has no platform, a worker's no secrets of webhooks, and
    what cannot be tried is skipped. In Redis it writes keys of its own, which it deletes; the public URL is posted a
    delivery without headers, which a receiver refuses. Exit codes: 0 all is well, 1 something wants attention, 2 wrong
    usage or a wrong setting.
    """
    findings = examine(_themes(Setup.from_environment(days=days)))
    for finding in findings:
        click.echo(json.dumps(finding._asdict()) if as_json else line(finding))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(findings))  # A thread that still asks a name server would keep the process from ending.


def _themes(setup: Setup) -> list[Theme]:
    return [
        Theme(settings.NAMES, functools.partial(settings.check_settings, setup), ""),
        Theme(doctor_redis.NAMES, functools.partial(doctor_redis.check_redis, setup), _LATE["redis"]),
        Theme(public_url.NAMES, functools.partial(public_url.check_public_url, setup), _LATE["public_url"]),
        Theme(platform.NAMES, functools.partial(platform.check_platform, setup), _LATE["platform"]),
    ]


def line(finding: Finding) -> str:
    """A finding as people read it: how it stands, its name, what was found, what to do; printable characters alone."""
    text = f"{finding.verdict:<8}{finding.name:<24}{finding.what}"
    if finding.remedy:
        text += f"; {finding.remedy}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def exit_code(findings: Sequence[Finding]) -> int:
    """2 where a setting is wrong, 1 where anything else wants attention, or 0."""
    wrong = [one for one in findings if one.verdict in {Verdict.WARN, Verdict.FAIL}]
    if any(one.name.startswith(settings.WRONG) and one.verdict is Verdict.FAIL for one in wrong):
        return 2
    return 1 if wrong else 0
