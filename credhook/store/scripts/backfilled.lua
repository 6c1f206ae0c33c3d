-- How deliveries and backfills keep out of each other's way, so that an event is accepted from one of them only.
--
-- A backfill accepts an event under an id made of its type and resource: a delivery of the same that comes later
-- is a duplicate of it. While a backfill runs, deliveries note what they bring, and it looks there at the last
-- moment. Where there has been none for long, all that this costs a group of deliveries is one EXISTS.
--
-- Defines: is_backfill, concerned, known_otherwise, note.

--! include keys.lua
--! include now.lua

-- Milliseconds that the list of backfilled events outlives the last of them. Their own records live as long as any.
local BACKFILLED_LASTS = 2000 * retention
local is_backfill = $ORIGIN == 'backfill'
-- Whether any of this has to be minded.
local concerned = is_backfill or redis.call('EXISTS', backfilled, arrivals) > 0
local noting = concerned and not is_backfill and redis.call('EXISTS', arrivals) == 1
local repeatable = $REPEATABLE_TYPES

-- Whether the event was accepted from the other side.
local function known_otherwise(type, resource)
    if is_backfill then return redis.call('SISMEMBER', arrivals, type .. ' ' .. resource) == 1 end
    -- Of a type that a resource can have more than once, it may be another one: rather twice than never.
    return not repeatable[type] and redis.call('EXISTS', EVENT .. $BACKFILLED .. type .. ':' .. resource) == 1
end

-- Note that the event is being accepted. Returns when it counts as received, as a text: those of a backfill a
-- millisecond apart, since the events of one resource are worked on in that order. `later` is how many come after it.
local function note(id, type, resource, later)
    if noting then
        redis.call('SADD', arrivals, type .. ' ' .. resource)
    elseif is_backfill then
        redis.call('ZREMRANGEBYSCORE', backfilled, '-inf', now - BACKFILLED_LASTS)
        redis.call('ZADD', backfilled, now, id)
        redis.call('PEXPIRE', backfilled, BACKFILLED_LASTS)
    end
    return is_backfill and string.format('%.0f', now - later) or now_text
end
