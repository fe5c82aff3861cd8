"""Topic config: what a topic promises (TOPIC-5 to TOPIC-14).

A `ConfigPatch` is what a client sent: only the fields it named are set. `TopicConfig` is the whole, resolved and
clamped config that a topic has. A PUT changes only what it names, so one that forgets `durability` never weakens a
topic; one that names `durable` without `durability` resolves the class anew.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace

from topics.errors import InvalidRequest, TopicExistsIncompatible
from topics.names import check_topic_name

U64: Final = 2**64 - 1

Unsigned = Annotated[int, Meta(ge=0)]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]

PRIORITY_MAX: Final = 1000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
CLAIM_JITTER_MS_MAX: Final = 5_000
BACKOFF_MS_MAX: Final = 86_400_000


class TopicConfig(Struct, frozen=True):
    """The full config of a topic, in the order in which it is echoed."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    backoff_ms: int = 0
    backoff_max_ms: int = 3_600_000


class ConfigPatch(Struct, frozen=True):
    """The config fields that a request named."""

    type: Literal["log", "queue"] | UnsetType = UNSET
    ttl_ms: Unsigned | UnsetType = UNSET
    cap_records: Unsigned | UnsetType = UNSET
    cap_bytes: Unsigned | UnsetType = UNSET
    discard: Literal["old", "reject"] | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: Unsigned | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: Unsigned | UnsetType = UNSET
    claim_jitter_ms: Unsigned | UnsetType = UNSET
    max_deliveries: Unsigned | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    backoff_ms: Unsigned | UnsetType = UNSET
    backoff_max_ms: Unsigned | UnsetType = UNSET


DEFAULTS: Final = TopicConfig()
NO_PATCH: Final = ConfigPatch()


def apply(patch: ConfigPatch, to: TopicConfig | None, topic: str) -> TopicConfig:
    """The config of `topic` after `patch`; `to` is None where the topic does not exist yet."""
    base = DEFAULTS if to is None else to
    named = {name: value for name, value in asdict(patch).items() if value is not UNSET}
    if to is not None and named.get("type", to.type) != to.type:
        raise TopicExistsIncompatible(
            f'topic "{topic}" is a {to.type} and cannot become a {named["type"]}: delete it and create it anew',
            topic=topic,
            field="type",
            type=to.type,
        )
    dead_letter = named.get("dead_letter")
    if dead_letter is not None:
        try:
            check_topic_name(dead_letter)
        except InvalidRequest as error:
            raise InvalidRequest(f"dead_letter: {error.message}", field="dead_letter", **error.detail) from None
        if dead_letter == topic:
            raise InvalidRequest("dead_letter must name another topic than this one", field="dead_letter")
    if named.get("priority") is not None:
        named["priority"] = max(-PRIORITY_MAX, min(PRIORITY_MAX, named["priority"]))
    if "lease_ms" in named:
        named["lease_ms"] = clamp_lease_ms(named["lease_ms"])
    if "claim_jitter_ms" in named:
        named["claim_jitter_ms"] = min(named["claim_jitter_ms"], CLAIM_JITTER_MS_MAX)
    for name in ("backoff_ms", "backoff_max_ms"):
        if name in named:
            named[name] = min(named[name], BACKOFF_MS_MAX)
    if "durability" in named:
        named["durable"] = named["durability"] == "fsync"
    elif "durable" in named:
        named["durability"] = "fsync" if named["durable"] else "disk"
    return replace(base, **named) if named else base


def clamp_lease_ms(lease_ms: int) -> int:
    """A lease duration within what is allowed (TOPIC-10)."""
    return max(LEASE_MS_MIN, min(LEASE_MS_MAX, lease_ms))
