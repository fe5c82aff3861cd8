"""One-record writes over one kept-alive connection: the smallest figure there is, bound by the generator."""

from __future__ import annotations

import http.client
import statistics
import time

from topics.testing import ServerProcess

REQUESTS = 5_000
BODY = b'{"records":[{"data":{"type":"resize","url":"s3://bucket/a.png","w":256},"tag":"tenant42:job-9001"}]}'


def main() -> None:
    """Print requests per second and latency."""
    with ServerProcess() as server:
        connection = http.client.HTTPConnection(server.host, server.port)
        latencies_us = []
        for _ in range(REQUESTS):
            start_ns = time.perf_counter_ns()
            connection.request("POST", "/v0/topics/bench", BODY, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            assert response.status in (200, 201), content
            latencies_us.append((time.perf_counter_ns() - start_ns) / 1000)
        connection.close()
    p50, p99 = statistics.median(latencies_us), statistics.quantiles(latencies_us, n=100)[98]
    rate = REQUESTS / (sum(latencies_us) / 1_000_000)
    print(f"POST one record, 1 connection (generator-bound): {rate:,.0f}/s  p50 {p50:.0f} us  p99 {p99:.0f} us")


if __name__ == "__main__":
    main()
