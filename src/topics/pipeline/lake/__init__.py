"""A lake: the tables that an archive keeps of topics, and what is done to them afterwards.

Guarantees that a batch is in the tables once and as a whole, whatever the format: `delta`, `parquet` and `iceberg` say
how. `typed` has columns out of the JSON; `compact` and `erase` rewrite files. Knows the Spark source, and neither the
commands nor the flows.
"""
