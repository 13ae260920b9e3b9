-- For wrk: POST the lines of the file BENCH_BODIES in rotation; one line of JSON at the end.
local bodies, at = {}, 0

function init()
  local headers = { ["content-type"] = "application/json" }
  for line in io.lines(os.getenv("BENCH_BODIES")) do
    bodies[#bodies + 1] = wrk.format("POST", nil, headers, line)
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
