"""Measurements of a running server, beside its peers, against the budget: `make bench`, or `python -m bench --help`.

The server runs on one core and the load generator on another, so neither borrows from the other. A section is a module
of this package with two names:

    ROWS = ("sse-1000", ...)                       # every row it can measure: for `--only` and `--list`

    def measure(bench: Bench) -> Iterator[Row]:    # yields each row as soon as it is measured
        if bench.wants("sse-1000"):
            with bench.server(max_sse_connections=0) as server:
                ...
                yield Row("sse-1000", "SSE, one record to 1,000 streams", p99_ms=4.2, target=at_most(20, "p99_ms"))

`Bench` (bed.py) has the settings of the run and starts pinned servers, `Row` (row.py) is one line of the table with
its target, `Traffic` (load.py) is a stream of requests for the generator. `sections.py` lists the modules; one that
has only a `main()` is run as it is and prints its own lines (`--only` takes its name then).
"""
