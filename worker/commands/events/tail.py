"""`credhook events tail`: what becomes of events, as it happens."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis import Redis
from redis.exceptions import ConnectionError, RedisError  # noqa: A004  Redis's own.

from credhook.store import LATEST
from credhook.worker.commands.events.options import watching
from credhook.worker.commands.events.tables import plain
from credhook.worker.commands.search.reading import ledger
from credhook.worker.commands.search.selection import Selection

#: Seconds after which it is seen that nobody reads any more; and between two tries to reach Redis.
_LOOK_EACH: Final = 0.5
#: Seconds of silence after which Redis is asked whether it is there, and after which it is not.
_ASK_AFTER: Final = 5.0
_GONE_AFTER: Final = 10.0


class Change(BaseModel):
    """What has become of an event.

    Attributes:
        at: when, by Redis's clock, ms since the epoch.
        attempt: the number of the attempt that has ended, if one has.
        milliseconds: since it was received, if an attempt has ended.
        retry_in: ms until the next attempt, if it waits for one.
        error: the cause, or "".
        replayed: whether somebody has put it back.
        reconciled: whether no delivery had brought it.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    at: int = Field(ge=0, le=LATEST)
    webhook_id: str = Field(validation_alias="id")
    state: str
    type: str
    resource_id: str = Field(validation_alias="resource")
    attempt: int | None = None
    milliseconds: int | None = Field(None, validation_alias="age")
    retry_in: int | None = Field(None, validation_alias="wait")
    error: str = ""
    replayed: bool = False
    reconciled: bool = False


@click.command()
@watching
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def tail(*, selection: Selection, as_json: bool) -> None:
    """Print what becomes of events from now on, a line each, until Ctrl-C.

    A line for each event that is accepted, put back or quarantined, and for each attempt: what it came to, how long
    after the event was received, what failed and when the next one is. Nothing is kept for it: what happens while the
    connection to Redis is lost is not shown, and a line says so.
    """
    with ledger() as (redis, index), suppress(KeyboardInterrupt):
        click.echo(f"watching {index.queue}; Ctrl-C ends it", err=True)
        for change in _changes(redis, index.changes):
            try:
                if not _is_read():
                    return
                if change is not None and _is_meant(change, selection):
                    click.echo(change.model_dump_json() if as_json else line(change))
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # What is left has nowhere to go.
                return


def read(data: bytes) -> Change | None:
    """The change that a message tells of; None if it is none of ours. Pure."""
    try:
        return Change.model_validate_json(data)
    except ValidationError:
        return None


def line(change: Change) -> str:
    """It for people, with nothing in it that a terminal would obey. Pure."""
    time_of_day = datetime.fromtimestamp(change.at / 1000, UTC).isoformat(timespec="milliseconds")[11:23]
    kind = change.type.removeprefix("openid4vc.")
    said = [change.state.ljust(11), kind.ljust(24), change.resource_id, change.webhook_id]
    if change.replayed:
        said.append("replayed")
    if change.milliseconds is not None:
        said.append(f"{change.milliseconds} ms")
    if change.attempt is not None and (change.attempt > 1 or change.error):
        said.append(f"attempt {change.attempt}")
    if change.error:
        said.append(change.error)
    if change.retry_in is not None:
        said.append(f"again in {change.retry_in / 1000:.1f} s")
    return plain("  ".join([time_of_day, *said]))


def _is_meant(change: Change, selection: Selection) -> bool:
    return (
        (not selection.states or change.state in selection.states)
        and (not selection.types or change.type in selection.types)
        and selection.resource in {None, change.resource_id}
        and (not selection.ids or change.webhook_id in selection.ids)
    )


def _is_read() -> bool:
    """Whether somebody may still read our output: the other end of a pipe has not been closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError, AttributeError):  # It is no file, as in a test.
        return True
    return not any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))


def _changes(redis: Redis, channel: str) -> Iterator[Change | None]:
    """Each change as it is told, and None now and then; for ever, through all outages, which are said."""
    cut_off = False
    while True:
        try:
            for message in _messages(redis, channel):
                if cut_off:
                    click.echo("Redis answers again; what has happened meanwhile is not shown", err=True)
                    cut_off = False
                yield read(message) if message else None
        except (RedisError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            if not cut_off:
                click.echo(f"Redis does not answer ({type(error).__name__}); trying again", err=True)
            cut_off = True
            yield None
            time.sleep(_LOOK_EACH)


def _messages(redis: Redis, channel: str) -> Iterator[bytes]:
    """What is said on the channel, and nothing now and then.

    Raises:
        RedisError: the connection is lost, or nothing has come over it for too long.
    """
    with redis.pubsub() as subscription:  # type: ignore[no-untyped-call]  # redis-py's gap
        subscription.subscribe(channel)
        heard = asked = time.monotonic()
        while True:
            message = subscription.get_message(timeout=_LOOK_EACH)
            now = time.monotonic()
            if message is not None:
                heard = asked = now
            elif now - heard > _GONE_AFTER:
                raise ConnectionError("silence")
            elif now - asked > _ASK_AFTER:
                asked = now
                subscription.ping()
            yield message["data"] if message is not None and message["type"] == "message" else b""
