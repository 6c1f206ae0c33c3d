-- The keys of a queue, as `Keys` in credhook/store has them. The first key of each script is their prefix.
--
-- A cluster would want each key declared; it is refused at start (credhook/store/health.py).
--
-- Defines: prefix, queue, EVENT, CONFLICT, SNAPSHOT, HISTORY, RESOURCE, INDEX, open, open_by_received, leases, locks, dead,
-- quarantined, unreadable, unhandled, causes, urgent, isolated, blocked, refused, backfilled, arrivals, unfinished, jobs,
-- intermediate, scheduled, started, failed, legible, hexed.

local prefix = KEYS[1]
local queue = string.sub(prefix, #$PREFIX + 1, -2)
local EVENT, CONFLICT, SNAPSHOT = prefix .. 'event:', prefix .. 'conflict:', prefix .. 'snapshot:'
local HISTORY, RESOURCE = prefix .. 'history:', prefix .. 'resource:'
local INDEX = prefix .. 'index:'
local open, open_by_received = prefix .. 'open', prefix .. 'open_by_received'
local leases, locks = prefix .. 'leases', prefix .. 'locks'
local dead, quarantined, unreadable = prefix .. 'dead', prefix .. 'quarantined', prefix .. 'unreadable'
local unhandled, causes = prefix .. 'unhandled:', prefix .. 'causes'
local urgent, isolated, blocked = prefix .. 'urgent', prefix .. 'isolated', prefix .. 'blocked:'
local refused, backfilled, arrivals = prefix .. 'refused:', prefix .. 'backfilled', prefix .. 'arrivals'
local unfinished = prefix .. 'unfinished'
local jobs, intermediate = 'rq:queue:' .. queue, 'rq:queue:' .. queue .. ':intermediate'
local scheduled, started, failed = 'rq:scheduled:' .. queue, 'rq:wip:' .. queue, 'rq:failed:' .. queue
-- What stands in the id of a job before the event's: as it is, or in hexadecimal; see credhook/store/job.py.
local legible = 'e' .. string.sub(redis.sha1hex(queue), 1, 8) .. '-'
local hexed = 'x' .. string.sub(legible, 2)
