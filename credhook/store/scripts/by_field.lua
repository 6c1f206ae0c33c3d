-- A hash as HGETALL replies it, as a table.
--
-- Defines: by_field.

local function by_field(reply)
    local record = {}
    for i = 1, #reply, 2 do record[reply[i]] = reply[i + 1] end
    return record
end
