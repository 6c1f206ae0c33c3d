-- What a record must hold so that it can be worked on. Somebody else may have written to it, and a value that is not as
-- expected would crash whoever reads it, in Python or here.
--
-- Defines: is_word, is_count, unreadable_part.

--! include now.lua

-- Milliseconds from now within which a retry is due. Handlers may ask for a week, and clocks may be set.
local FURTHEST = 30 * 86400000
local states, known = $STATES, $EVENT_TYPES

-- Ids, types and resources: the receiver writes visible ASCII only.
local function is_word(text)
    return text and #text <= 256 and string.find(text, '^[!-~]+$')
end

-- Whole numbers that a double holds exactly.
local function is_count(text)
    return text and #text <= 15 and string.find(text, '^%d+$')
end

-- Numbers to which a claim adds one.
local function is_small(text)
    return is_count(text) and #text < 14
end

-- The first part of an open event's record that cannot be read, or nil if all can. `received` may be missing.
local function unreadable_part(id, state, type, resource, received, fence, attempts, due)
    if not is_word(id) then return 'webhook-id' end
    if not (state and states[state]) then return 'state' end
    if not (known[type] or is_word(type)) then return 'type' end
    if not is_word(resource) then return 'resource' end
    if received and (not is_count(received) or tonumber(received) > $LATEST) then return 'received' end
    if fence and not is_small(fence) then return 'fence' end
    if attempts and not is_small(attempts) then return 'attempts' end
    if due and (not is_count(due) or tonumber(due) > now + FURTHEST) then return 'due' end
    return nil
end
