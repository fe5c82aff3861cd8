"""A data directory for people: every byte checked (`verify`), everything printed (`dump`). Changes nothing."""
