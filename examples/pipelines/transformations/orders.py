"""The orders of a shop: out of a topic into a streaming table, and the large ones on into another topic."""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, from_json

# The pipeline's own session; its settings are those of spark-pipeline.yml.
spark = SparkSession.active()
URL = spark.conf.get("spark.topics.url")

dp.create_sink("large_orders", "topics", {"url": URL, "topic": "large-orders"})


@dp.table
def orders() -> Any:
    """Every order once. The key, where the server wants one, comes from TOPICS_TOKEN."""
    topic = spark.readStream.format("topics").options(url=URL, topic="orders").load()
    order = from_json(col("data"), "id STRING, product STRING, quantity INT, price DOUBLE")
    return topic.select("seq", "ts", order.alias("order")).select("seq", "ts", "order.*")


@dp.append_flow(target="large_orders")
def to_large_orders() -> Any:
    """Rows become records: `data` is the JSON, the tag is what a consumer may filter by."""
    large = spark.readStream.table("orders").where("quantity * price >= 100")
    return large.select(
        expr("to_json(struct(id, product, quantity * price AS total)) AS data"), col("product").alias("tag")
    )
