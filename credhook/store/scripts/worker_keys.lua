-- The KEYS that workers' scripts have in common, in the order of `keys` in worker/queue/scripts.py.
--
-- KEYS: the open events, the leases, the dead events; RQ's queue, schedule and started jobs; the urgent jobs; the jobs
-- that were popped and not looked at yet; the locks of resources; the prefixes of the jobs parked behind one, and of a
-- refused job; the solitary jobs; the prefix of the unhandled events of a type; the open events by when they came; the
-- causes of failures.
--
-- Defines: open, leases, dead, jobs, scheduled, started, urgent, intermediate, locks, parked, refused, solitary,
-- unhandled, opened, causes.

local open, leases, dead, jobs, scheduled, started = unpack(KEYS)
local urgent, intermediate, locks, parked, refused, solitary, unhandled, opened, causes = unpack(KEYS, 7)
