"""`credhook events tail`: print the changes of events as they happen."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import click
from pydantic import BaseModel, ConfigDict, Field
from redis import Redis
from redis.exceptions import ConnectionError, RedisError  # noqa: A004  Redis's own.

from credhook.worker.commands.events.command import plain, watching
from credhook.worker.commands.search import Selection, open_store

#: Seconds between two tries to reach Redis.
_RETRY_SECONDS: Final = 0.5
#: Seconds of silence after which Redis is pinged, and after which it counts as gone.
_PING_SECONDS: Final = 5.0
_GONE_SECONDS: Final = 10.0


class EventChange(BaseModel):
    """A change of an event.

    Attributes:
        at: when it happened by Redis's clock, in ms since the epoch.
        attempt: the number of the attempt that has ended, if one has.
        milliseconds: time since the event was received, if an attempt has ended.
        retry_in: ms until the next attempt, if the event waits for one.
        error: the cause of a failure, or "".
        replayed: whether the event was replayed.
        backfilled: whether a backfill accepted the event.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    at: int
    webhook_id: str = Field(validation_alias="id")
    state: str
    type: str
    resource_id: str = Field(validation_alias="resource")
    attempt: int | None = None
    milliseconds: int | None = Field(None, validation_alias="age")
    retry_in: int | None = Field(None, validation_alias="wait")
    error: str = ""
    replayed: bool = False
    backfilled: bool = False


@click.command()
@watching
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def tail(*, selection: Selection, as_json: bool) -> None:
    """Print each change of an event from now on, until Ctrl-C.

    There is a line for each event that is accepted, replayed or quarantined, and for each attempt: its result, the time
    since the event was received, the error, and when the next attempt is. Changes are not stored. If
    the connection to Redis is lost, changes in between are not shown, and a line tells you.
    """
    with open_store() as (redis, index), suppress(KeyboardInterrupt):
        click.echo(f"watching {index.queue}; Ctrl-C ends it", err=True)
        for change in _changes(redis, index.changes):
            if _is_selected(change, selection):
                try:
                    click.echo(change.model_dump_json() if as_json else line(change))
                except BrokenPipeError:  # The reader is gone. Without this, Python would fail again at its exit.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                    return


def line(change: EventChange) -> str:
    """Return the change as a line for people. Pure."""
    time_of_day = datetime.fromtimestamp(change.at / 1000, UTC).isoformat(timespec="milliseconds")[11:23]
    kind = change.type.removeprefix("openid4vc.")
    parts = [time_of_day, change.state.ljust(11), kind.ljust(24), change.resource_id, change.webhook_id]
    if change.replayed:
        parts.append("replayed")
    if change.milliseconds is not None:
        parts.append(f"{change.milliseconds} ms")
    if change.attempt is not None and (change.attempt > 1 or change.error):
        parts.append(f"attempt {change.attempt}")
    if change.error:
        parts.append(change.error)
    if change.retry_in is not None:
        parts.append(f"again in {change.retry_in / 1000:.1f} s")
    return plain("  ".join(parts))


def _is_selected(change: EventChange, selection: Selection) -> bool:
    return (
        (not selection.states or change.state in selection.states)
        and (not selection.types or change.type in selection.types)
        and selection.resource in {None, change.resource_id}
        and (not selection.ids or change.webhook_id in selection.ids)
    )


def _changes(redis: Redis, channel: str) -> Iterator[EventChange]:
    """Yield the changes for ever. Outages of Redis are reported on standard error."""
    lost = False
    while True:
        try:
            for message in _messages(redis, channel):
                if lost:
                    click.echo("Redis answers again; changes in between are not shown", err=True)
                    lost = False
                if message:
                    yield EventChange.model_validate_json(message)
        except (RedisError, OSError) as error:
            if not lost:
                click.echo(f"Redis does not answer ({type(error).__name__}); trying again", err=True)
            lost = True
            time.sleep(_RETRY_SECONDS)


def _messages(redis: Redis, channel: str) -> Iterator[bytes]:
    """Yield the messages of the channel, and b"" for any other sign of life.

    Raises:
        RedisError: the connection is lost, or has been silent for too long.
    """
    with redis.pubsub() as subscription:  # type: ignore[no-untyped-call]  # redis-py's gap
        subscription.subscribe(channel)
        heard = time.monotonic()
        while True:
            message = subscription.get_message(timeout=_PING_SECONDS)
            if message is not None:
                heard = time.monotonic()
                yield message["data"] if message["type"] == "message" else b""
            elif time.monotonic() - heard > _GONE_SECONDS:
                raise ConnectionError("silence")
            else:
                subscription.ping()
