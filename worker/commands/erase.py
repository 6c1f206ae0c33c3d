"""`credhook events erase`: forgets an event, and all that was kept for its sake."""

from collections.abc import Sequence
from typing import Final, cast

import click
from redis import Redis

from credhook.ledger import CONFLICT, EVENT, RESOURCE, SNAPSHOT, State, job_id, lua
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

#: Milliseconds after the end of its lease by which a worker is done with an event that it has lost. A stock RQ worker
#: keeps a job as failed if its record is gone before that.
_NOTICED: Final = 5_000

# The events' own keys are built from the arguments, as the receiver's script does.
#: KEYS: leases, RQ's started jobs, the prefixes of the resources' holders and followers, then every other sorted set of
#: events, and of jobs. ARGV: number of the former sets, then of each event webhook-id, job, and the state in which it
#: was selected, or '' if that does not matter. Returns what became of each.
#:
#: What holds the resource's name goes as well, even if other events are of the same one. RQ's queue may still name the
#: job: to look for it there would take too long, and the worker that takes it finds nothing.
#:
#: What somebody else has written to goes as well. The record goes last, so that what was broken off can be asked for
#: again.
_ERASE: Final = f"""{lua.NOW}{lua.ODD}{lua.READABLE}
local leases, started, busy, parked = unpack(KEYS)
local of_events = tonumber(ARGV[1])
local outcomes = {{}}

local function erase(id, job, selected)
    local key = '{EVENT}' .. id
    local there = redis.call('EXISTS', key) == 1
    local record = unless_odd('HMGET', key, 'state', 'type', 'resource', 'received') or {{}}
    local state, type, resource, received = unpack(record)
    local shown = state
    if unreadable_part(id, state, type, resource == '' and '-' or resource, received) then
        shown = '{State.UNREADABLE}'
    end
    if there and selected ~= '' and state ~= selected and shown ~= selected then return 'changed' end
    local lease = tonumber(unless_odd('ZSCORE', leases, id) or 0)
    for _, execution in ipairs(unless_odd('ZRANGE', 'rq:executions:' .. job, 0, -1) or {{}}) do
        redis.call('DEL', 'rq:execution:' .. job .. ':' .. execution)
        unless_odd('ZREM', started, job .. ':' .. execution)
    end
    if resource then
        redis.call('DEL', '{RESOURCE}' .. resource)
        unless_odd('ZREM', parked .. resource, job)
        if unless_odd('GET', busy .. resource) == id then redis.call('DEL', busy .. resource) end
    end
    redis.call('PEXPIRE', 'rq:job:' .. job, lease > now and lease - now + {_NOTICED} or 0)
    unless_odd('ZREM', leases, id)
    for i = 5, #KEYS do unless_odd('ZREM', KEYS[i], i < 5 + of_events and id or job) end
    redis.call('DEL', '{CONFLICT}' .. id, '{SNAPSHOT}' .. id, 'rq:results:' .. job, 'rq:executions:' .. job, key)
    if not there then return 'missing' end
    return lease > now and 'held' or 'erased'
end

for i = 2, #ARGV, 3 do outcomes[#outcomes + 1] = erase(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return outcomes
"""

#: Outcome of the script → what to say of it besides that the event was erased.
_DONE: Final = {"erased": "", "held": "while a worker had it"}
#: Outcome of the script → why the event was left.
_LEFT: Final = {"changed": "changed meanwhile", "missing": "not in the ledger"}


@click.command()
@selecting
@click.option("--all", "everything", is_flag=True, help="Every event, where nothing else says which.")
@click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def erase(*, selection: Selection, everything: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Forget events, and all that is kept for their sake.

    With --resource it answers a request to erase what is known of one issuance or presentation; what handlers have
    stored elsewhere is theirs to erase. A delivery that the platform repeats after its event was erased is not known
    as a duplicate any more: it is accepted as new, and its handlers run again. An event that a worker has in hand is
    erased as well; a handler that is running for it may still finish.
    """
    refuse_everything(selection, everything=everything)
    with ledger() as (redis, index):
        with interruptible():
            events = sorted(find(redis, index, selection), key=lambda event: event.received)
            if dry_run:
                print_counts(events, as_json=as_json)
                return
            if events and not yes:
                ask(f"Selected to be forgotten: {len(events)}; a repeated delivery would be accepted as new.")
            events += [Found(webhook_id, "", "", 0) for webhook_id in absent(redis, selection)]
        if selection.resource is not None:
            _forget_resource(redis, selection.resource)
        script = redis.register_script(_ERASE)
        of_events = (index.open, index.dead, index.quarantined, index.unreadable)
        of_jobs = (index.scheduled, index.failed, index.solitary)
        keys = [index.leases, index.started, index.busy, index.parked, *of_events, *of_jobs]

        def step(batch: Sequence[Found]) -> Sequence[bytes]:
            arguments: list[str | int | bytes] = [len(of_events)]
            for event in batch:
                # Asked for by its state, it is spared if it has left that state; else it goes, whatever becomes of it.
                arguments += raw(event.webhook_id), job_id(event.webhook_id), event.state if selection.states else ""
            return cast(Sequence[bytes], script(keys=keys, args=arguments))

        report(work_through(events, step, "erasing"), "erased", _DONE, _LEFT, as_json=as_json)


def _forget_resource(redis: Redis, resource: str) -> None:
    """Forget what names the resource outside its events: what handlers have seen of it, and deliveries kept aside."""
    redis.delete(RESOURCE + resource)
    for page in batched(redis.scan_iter(match=CONFLICT + "*", count=PAGE), PAGE):
        pipeline = redis.pipeline(transaction=False)
        for key in page:
            pipeline.hkeys(key)
        for key, fields in zip(page, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(fields, Exception):  # It is no hash: somebody else has written it.
                continue
            if theirs := [field for field in fields if field.endswith(f" {resource}".encode())]:
                redis.hdel(key, *theirs)
