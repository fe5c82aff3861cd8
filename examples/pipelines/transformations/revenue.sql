-- What each product has brought in; computed again by every run.
CREATE MATERIALIZED VIEW revenue AS
SELECT product, count(*) AS orders, sum(quantity * price) AS total
FROM orders
GROUP BY product;
