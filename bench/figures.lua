-- What wrk measured, as the line that load.py reads.
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'BENCH {"requests":%d,"seconds":%.6f,"bytes":%d,"refused":%d,"broken":%d,"p50_ms":%.4f,"p99_ms":%.4f,"max_ms":%.4f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, errors.status,
    errors.connect + errors.read + errors.write, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3))
end
