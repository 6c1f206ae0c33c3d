"""`credhook status`: one look at everything, for people and (`--json`) for programs."""

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from credhook.ops.attention import Limits
from credhook.ops.facts import Facts
from credhook.ops.fleet import Remark
from credhook.ops.page import lines
from credhook.ops.reading import look_at, platform_of_host
from credhook.settings import LedgerSettings
from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis_sync

#: Seconds that Redis may take for one answer, and for all.
_PATIENCE: Final = 5.0
_DEADLINE: Final = 20.0

T = TypeVar("T")


@click.command()
@click.option(
    "--oldest",
    type=click.FloatRange(min=0),
    default=Limits().oldest,
    show_default=True,
    metavar="SECONDS",
    help="How long an event may be open before that wants attention.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(*, oldest: float, as_json: bool) -> None:
    """Show how the fleet is, and what wants attention.

    REDIS_URL and CREDHOOK_QUEUE are all that it needs. Exit codes: 0 all is well, 1 something wants attention, 2 wrong
    usage or a wrong setting.
    """
    settings = LedgerSettings()
    try:
        facts, remarks = _within(_DEADLINE, lambda: _look(settings, oldest))
    except TimeoutError:
        remedy = "see whether it, the way there, or a name server is too slow"
        facts, remarks = None, (Remark("redis", f"Redis has not told all within {_DEADLINE:g} s", remedy),)
    if as_json:
        named = [one._asdict() for one in remarks]
        click.echo(json.dumps({**(facts.as_json() if facts else {"queue": settings.queue}), "attention": named}))
    else:
        for line in lines(facts, remarks):
            click.echo(line)
    sys.exit(1 if remarks else 0)


def _look(settings: LedgerSettings, oldest: float) -> tuple[Facts | None, tuple[Remark, ...]]:
    address = RedisAddress.parse(settings.redis_url.get_secret_value())
    patience = {"socket_timeout": _PATIENCE, "socket_connect_timeout": _PATIENCE}
    redis: Redis = open_redis_sync(address, retry=Retry(NoBackoff(), 0), **patience)
    try:
        return look_at(redis, str(address), settings.queue, platform_of_host(), Limits(oldest))
    finally:
        redis.close()


def _within(seconds: float, work: Callable[[], T]) -> T:
    """What it returns or raises, or TimeoutError; then it is left behind, in a thread that keeps nobody."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001  Whoever waits is told.
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)
