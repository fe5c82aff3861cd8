"""Listing: the topics of an engine page by page, in the order of their names (TOPIC-19)."""

from __future__ import annotations

from topics.engine.catalog import Catalog
from topics.engine.state import TopicSummary


def page(
    catalog: Catalog, prefix: str, after: str, page_size: int, allowed: tuple[str, ...], now: int, *, touch: bool
) -> tuple[list[TopicSummary], str | None]:
    """The topics after the name `after`, and the name to continue from if there are more."""
    found: list[TopicSummary] = []
    for name in catalog.names.after(after, prefix, allowed):
        if len(found) == page_size:
            return found, found[-1].topic
        topic = catalog.topics[name]
        topic.catch_up()
        topic.expire(now)
        if touch:
            topic.touch(now)
        log, config = topic.log, topic.config
        priority = topic.effective_priority(now)
        held = log.head, log.start, log.count, log.bytes
        found.append(TopicSummary(name, *held, config.durable, priority, config.type))
    return found, None
