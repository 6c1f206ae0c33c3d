-- Sends each request of a file once: the file holds requests of one size, and each thread of wrk has a part of its own.
-- Arguments: the file, bytes per request, the first request, how many, threads.

local threads = {}

function setup(thread)
  thread:set("index", #threads)
  table.insert(threads, thread)
end

function init(args)
  local first, count = tonumber(args[3]), tonumber(args[4])
  size, left, exhausted = tonumber(args[2]), math.floor(count / tonumber(args[5])), false
  file = assert(io.open(args[1], "rb"))
  file:setvbuf("full", 1048576)
  file:seek("set", size * (first + index * left))
end

function request()
  if left == 0 then
    exhausted = true
    wrk.thread:stop()
    return wrk.format("GET", "/exhausted")
  end
  left = left - 1
  return file:read(size)
end

function done(summary, latency, requests)
  local errors, exhausted = summary.errors, false
  for _, thread in ipairs(threads) do
    exhausted = exhausted or thread:get("exhausted")
  end
  io.write(string.format(
    '{"answers": %d, "refused": %d, "broken": %d, "microseconds": %d, "exhausted": %s}\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout, summary.duration,
    tostring(exhausted)
  ))
end
