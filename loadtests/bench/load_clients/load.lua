-- For wrk: POST the bodies of the file BENCH_BODIES in rotation; one line of JSON at the end. A body is a line, or
-- in a file named *.framed what follows a line with its length. BENCH_HEADERS has lines "name: value".
local bodies, at = {}, 0

local function each(path)
  if not path:match("%.framed$") then return io.lines(path) end
  local file = assert(io.open(path, "rb"))
  return function()
    local length = file:read("*n", 1)
    return length and file:read(length)
  end
end

function init()
  local headers = { ["content-type"] = "application/json" }
  for name, value in (os.getenv("BENCH_HEADERS") or ""):gmatch("([^:\n]+): ([^\n]*)") do
    headers[name] = value
  end
  for body in each(os.getenv("BENCH_BODIES")) do
    bodies[#bodies + 1] = wrk.format("POST", nil, headers, body)
  end
end

function request()
  at = at % #bodies + 1
  return bodies[at]
end

function done(summary, latency)
  local seconds, errors = summary.duration / 1e6, summary.errors
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"p50_us":%.1f,"p90_us":%.1f,"p99_us":%.1f,"max_us":%.1f,"mean_us":%.1f,'
      .. '"err_connect":%d,"err_read":%d,"err_write":%d,"err_status":%d,"err_timeout":%d}\n',
    summary.requests, seconds, latency:percentile(50), latency:percentile(90), latency:percentile(99),
    latency.max, latency.mean,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
