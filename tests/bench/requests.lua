-- Sends each request of a file once: the file holds requests of one size, and each thread of wrk has a part of its own.
-- Arguments: the file, bytes per request, the first request, how many, threads.

local started = 0

function setup(thread)
  thread:set("index", started)
  started = started + 1
end

function init(args)
  local first, count, threads = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  size, left = tonumber(args[2]), math.floor(count / threads)
  file = assert(io.open(args[1], "rb"))
  file:setvbuf("full", 1048576)
  file:seek("set", size * (first + index * left))
end

function request()
  if left == 0 then
    -- Whoever started wrk sees from the count that the requests ran out, and discards the figures.
    wrk.thread:stop()
    return wrk.format("GET", "/exhausted")
  end
  left = left - 1
  return file:read(size)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"answers": %d, "refused": %d, "broken": %d, "microseconds": %d}\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout, summary.duration
  ))
end
