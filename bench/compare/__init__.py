"""`python -m bench.compare`: the same work on topics, Redis Streams and NATS JetStream, in turns within one run.

Each round starts every system anew on the server's core, one after the other, with the same records of 150 bytes. What
else the machine does then weighs on all of them, and the ratio within one run is what counts. A system is a module with
a class of its name; what is done is in `work`, the page and its plots in `report`.

The generators differ, because each protocol has its own: wrk for topics, redis-benchmark for Redis, Python for NATS,
for jobs and for latency on all three. So each figure comes with the processor time of the server per record, which does
not depend on the generator.
"""
