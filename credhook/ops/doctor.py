"""`credhook doctor`: every check on one line, for people and (`--json`) for programs."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from credhook.ops import doctor_platform, doctor_redis, doctor_settings
from credhook.ops.doctor_settings import CERTIFICATE_DAYS, Setup
from credhook.ops.findings import CheckGroup, Finding, Verdict, examine

#: Failures of these checks end the command with exit code 2.
_SETTINGS_PREFIX: Final = "settings."


@click.command()
@click.option(
    "--days",
    type=click.IntRange(0),
    default=CERTIFICATE_DAYS,
    show_default=True,
    help="For how long certificates should still be valid.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def doctor(*, days: int, as_json: bool) -> None:
    """Try everything that receivers and workers depend on, and say what to do about each problem.

    It uses the settings of this host: a receiver's host has no platform, a worker's host no webhook secrets. Checks
    that do not apply are skipped. It writes keys of its own to Redis and deletes them. It posts a delivery without
    headers to the public URL, which a receiver refuses. Exit codes: 0 all is well, 1 something needs attention, 2 wrong
    usage or a wrong setting.
    """
    findings = examine(_groups(Setup.from_environment(days=days)))
    for finding in findings:
        click.echo(json.dumps(finding._asdict()) if as_json else line(finding))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(findings))  # A thread that still waits for a name server would keep the process alive.


def _groups(setup: Setup) -> list[CheckGroup]:
    redis = "see whether Redis or the network is too slow"
    url = "see whether the name server answers"
    platform = "see whether handlers take long to import, or the name server does not answer"
    return [
        CheckGroup(doctor_settings.NAMES, partial(doctor_settings.check_settings, setup)),
        CheckGroup(doctor_redis.NAMES, partial(doctor_redis.check_redis, setup), redis),
        CheckGroup(doctor_platform.URL_NAMES, partial(doctor_platform.check_public_url, setup), url),
        CheckGroup(doctor_platform.NAMES, partial(doctor_platform.check_platform, setup), platform),
    ]


def line(finding: Finding) -> str:
    """Return the finding as one line: verdict, name, problem, remedy."""
    text = f"{finding.verdict:<8}{finding.name:<24}{finding.what}"
    if finding.remedy:
        text += f"; {finding.remedy}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if a setting is wrong, 1 if anything else needs attention, or 0."""
    if any(one.verdict is Verdict.FAIL and one.name.startswith(_SETTINGS_PREFIX) for one in findings):
        return 2
    return int(any(one.needs_attention for one in findings))
