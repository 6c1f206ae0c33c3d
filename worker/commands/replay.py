"""`credhook events replay`: settled and quarantined events back to the workers, as if they had just been accepted."""

import difflib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, cast

import click
from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.ledger import EVENT, HANDLER, SNAPSHOT, Index, State, job_data, job_fields, job_id, lua
from credhook.worker.attempt.outcome import GAVE_UP
from credhook.worker.commands.batches import ask, batched, interruptible, report, work_through
from credhook.worker.commands.selection import (
    PAGE,
    Found,
    Selection,
    absent,
    find,
    ledger,
    print_counts,
    raw,
    refuse_everything,
    selecting,
)
from credhook.worker.handlers.registry import load
from credhook.worker.settings import HandlerSettings

# The events' own keys are built from the arguments, as the receiver's script does.
#: KEYS: open, leases, dead, quarantined, RQ's schedule, failed jobs, queue, the jobs' template, unreadable. ARGV:
#: handler or '', the types that it wants, each between spaces, `now` if what waits is due at once, number of job
#: fields, fields and values, then of each event webhook-id, job, data, and the state in which it was selected. Returns
#: what became of each.
#:
#: A new claim gets a fence that no earlier one can have had, so that a worker that held the event long ago and lost it
#: cannot settle it now.
#:
#: A record is changed only after its job has been written and its place among the open events: if a command fails, the
#: replay can be asked for again, and the reconciler finds what is accepted but not in the queue.
_REPLAY: Final = f"""{lua.NOW}{lua.ODD}{lua.READABLE}
local open, leases, dead, quarantined, scheduled, failed, queue, template, unreadable = unpack(KEYS)
local handler, wanted, hurry, fields = ARGV[1], ARGV[2], ARGV[3] == 'now', tonumber(ARGV[4])
local known = {{{", ".join(f"['{name}'] = true" for name in EVENT_TYPES)}}}
local outcomes, jobs = {{}}, {{}}

local function enqueue(id, job, data)
    if #jobs == 0 then
        redis.call('DEL', template)
        redis.call('HSET', template, unpack(ARGV, 5, 4 + 2 * fields))
    end
    redis.call('COPY', template, 'rq:job:' .. job, 'REPLACE')
    redis.call('HSET', 'rq:job:' .. job, 'data', data)
    redis.call('ZADD', open, now, id)
    redis.call('ZREM', leases, id)
    unless_odd('ZREM', scheduled, job)
    unless_odd('ZREM', failed, job)
    jobs[#jobs + 1] = job
end

local function forget_failures(key, all)
    local record = redis.call('HGETALL', key)
    for i = 1, #record, 2 do
        local is_handler = string.sub(record[i], 1, {len(HANDLER)}) == '{HANDLER}'
        if is_handler and (all or string.sub(record[i + 1], 1, {len(GAVE_UP)}) == '{GAVE_UP}') then
            redis.call('HDEL', key, record[i])
        end
    end
end

local function replay(id, job, data, selected)
    local key = '{EVENT}' .. id
    local record = unless_odd('HMGET', key, 'state', 'type', 'resource', 'received')
    if not record then return 'unreadable' end
    local state, type, resource, received = unpack(record)
    if not (state or type) and redis.call('EXISTS', key) == 0 then return 'missing' end
    local wrong = unreadable_part(id, state, type, resource == '' and '-' or resource, received)
    if wrong then return 'unreadable' end
    local is_open = state == '{State.ACCEPTED}' or state == '{State.WAITING}'
    -- Set aside, and mended since in its state as well.
    local mended = is_open and unless_odd('ZSCORE', unreadable, id) and not redis.call('ZSCORE', open, id)
    if state == '{State.WAITING}' and hurry and not mended then
        if not redis.call('ZSCORE', open, id) then return 'elsewhere' end
        local lease = redis.call('ZSCORE', leases, id)
        if lease and tonumber(lease) > now then return 'open' end
        redis.call('HSET', key, 'due', now)
        enqueue(id, job, data)
        return 'replayed'
    end
    if is_open and not mended then return 'open' end
    if state ~= selected then return 'changed' end
    if not known[type] then return 'unknown_type' end
    if resource == '' then return 'no_resource' end
    if handler ~= '' then
        local ended = redis.call('HEXISTS', key, '{HANDLER}' .. handler) == 1
        if not ended and not string.find(wanted, ' ' .. type .. ' ', 1, true) then return 'unrelated' end
    end
    enqueue(id, job, data)
    redis.call('PERSIST', key)
    if handler == '' then
        forget_failures(key, state == '{State.DONE}')
    else
        redis.call('HDEL', key, '{HANDLER}' .. handler)
    end
    redis.call('HDEL', key, 'attempts', 'error', 'settled', 'due', 'seen', 'holder', 'deaths', 'killed')
    -- Kept because the platform may not show it again: the worker should look there first.
    if redis.call('EXISTS', '{SNAPSHOT}' .. id) == 1 then redis.call('HSET', key, 'seen', 1) end
    redis.call('HSET', key, 'state', '{State.ACCEPTED}', 'fence', now)
    redis.call('ZREM', dead, id)
    redis.call('ZREM', quarantined, id)
    redis.call('ZREM', unreadable, id)
    return 'replayed'
end

for i = 5 + 2 * fields, #ARGV, 4 do
    outcomes[#outcomes + 1] = replay(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
if #jobs > 0 then
    redis.call('DEL', template)
    redis.call('SADD', 'rq:queues', queue)
    redis.call('RPUSH', queue, unpack(jobs))
end
return outcomes
"""

#: Outcome of the script → why the event was left.
_LEFT: Final = {
    "open": "open",
    "unknown_type": "of unknown type",
    "no_resource": "without a resource",
    "unrelated": "that the handler does not want",
    "elsewhere": "of another queue",
    "changed": "changed meanwhile",
    "missing": "not in the ledger",
    "unreadable": "whose record cannot be read",
}


@click.command()
@selecting
@click.option("--all", "everything", is_flag=True, help="Every event, where nothing else says which.")
@click.option(
    "--handler",
    metavar="NAME",
    help="Run this handler again, and those that have not ended for the event yet, but no other. `credhook handlers "
    "list` prints the names.",
)
@click.option("--now", "hurry", is_flag=True, help="Also make waiting events due at once.")
@click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type.")
@click.option("--yes", is_flag=True, help="Do not ask before all handlers of a done event run again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def replay(
    *,
    selection: Selection,
    everything: bool,
    handler: str | None,
    hurry: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put settled and quarantined events back into the queue that CREDHOOK_QUEUE names, whichever they came by.

    What was set aside because its record could not be read is replayed once somebody has repaired it.

    Which handlers run again: of a dead event those that gave up, of a done event all, and with --handler that one. What
    is quarantined is accepted if its type is known by now. What is open already is left alone. The attempts are counted
    from 1 again.
    """
    refuse_everything(selection, everything=everything)
    if handler is not None and hurry:
        raise click.UsageError("--handler and --now exclude each other: a waiting event runs what has not ended yet")
    with ledger() as (redis, index):
        with interruptible():
            events = sorted(find(redis, index, selection), key=lambda event: event.received)
            wanted = _types_wanted(redis, handler, events) if handler is not None else frozenset[str]()
            if dry_run:
                print_counts(events, as_json=as_json)
                return
            again = sum(event.state == State.DONE for event in events)
            if again and handler is None and not yes:
                ask(f"Done already: {again} of the {len(events)} selected; all their handlers would run again.")
            events += [Found(webhook_id, "", "", 0) for webhook_id in absent(redis, selection)]
        script = redis.register_script(_REPLAY)

        def step(batch: Sequence[Found]) -> Sequence[bytes]:
            fields = job_fields(index.queue, datetime.now(UTC))
            types = f" {' '.join(wanted)} "
            arguments: list[str | int | bytes] = [handler or "", types, "now" if hurry else "", len(fields)]
            for name, value in fields.items():
                arguments += name, value
            for event in batch:
                name = event.webhook_id
                arguments += raw(name), job_id(name), job_data(name), event.state
            return cast(Sequence[bytes], script(keys=_keys(index), args=arguments))

        report(work_through(events, step, "replaying"), "replayed", {"replayed": ""}, _LEFT, as_json=as_json)


def _keys(index: Index) -> list[str]:
    return [
        index.open,
        index.leases,
        index.dead,
        index.quarantined,
        index.scheduled,
        index.failed,
        index.jobs,
        index.template,
        index.unreadable,
    ]


def _types_wanted(redis: Redis, handler: str, events: Sequence[Found]) -> frozenset[str]:
    """The types that the handler wants, if it is loaded here; none if only the records of the events know it.

    Raises:
        click.UsageError: neither knows it.
    """
    loaded = {one.name: one.types for one in load(HandlerSettings().handlers).handlers}
    if handler in loaded:
        return loaded[handler]
    recorded = set[str]()
    for page in batched(events, PAGE):
        pipeline = redis.pipeline(transaction=False)
        for event in page:
            pipeline.hkeys(raw(EVENT + event.webhook_id))
        replies = pipeline.execute(raise_on_error=False)  # A key may be no hash.
        fields = [field.decode(errors="replace") for names in replies if isinstance(names, list) for field in names]
        recorded.update(field.removeprefix(HANDLER) for field in fields if field.startswith(HANDLER))
        if handler in recorded:
            return frozenset()
    names = sorted(recorded | loaded.keys())
    near = difflib.get_close_matches(handler, names)
    known = f"did you mean {' or '.join(near)}?" if near else f"they know {', '.join(names) or 'none'}"
    raise click.UsageError(f"no selected event and no loaded plugin knows a handler {handler!r}; {known}")
