-- How deliveries and reconciliations keep out of each other's way, so that an event is accepted from one of them only.
--
-- A reconciliation accepts an event under an id made of its type and resource: a delivery of the same that comes later
-- is a duplicate of it. While a reconciliation runs, deliveries note what they bring, and it looks there at the last
-- moment. Where there has been none for long, all that this costs a group of deliveries is one EXISTS.
--
-- Defines: reconciles, concerned, known_otherwise, note.

--! include keys.lua
--! include now.lua

-- Milliseconds that the list of reconciled events outlives the last of them. Their own records live as long as any.
local RECONCILED_LASTS = 2000 * retention
local reconciles = $ORIGIN == 'reconciliation'
-- Whether any of this has to be minded.
local concerned = reconciles or redis.call('EXISTS', reconciled, arrivals) > 0
local noting = concerned and not reconciles and redis.call('EXISTS', arrivals) == 1
local repeatable = $REPEATABLE_TYPES

-- Whether the event was accepted from the other side.
local function known_otherwise(type, resource)
    if reconciles then return redis.call('SISMEMBER', arrivals, type .. ' ' .. resource) == 1 end
    -- Of a type that a resource can have more than once, it may be another one: rather twice than never.
    return not repeatable[type] and redis.call('EXISTS', EVENT .. $RECONCILED .. type .. ':' .. resource) == 1
end

-- Note that the event is being accepted. Returns when it counts as received, as a text: those of a reconciliation a
-- millisecond apart, since the events of one resource are worked on in that order. `later` is how many come after it.
local function note(id, type, resource, later)
    if noting then
        redis.call('SADD', arrivals, type .. ' ' .. resource)
    elseif reconciles then
        redis.call('ZREMRANGEBYSCORE', reconciled, '-inf', now - RECONCILED_LASTS)
        redis.call('ZADD', reconciled, now, id)
        redis.call('PEXPIRE', reconciled, RECONCILED_LASTS)
    end
    return reconciles and string.format('%.0f', now - later) or now_text
end
