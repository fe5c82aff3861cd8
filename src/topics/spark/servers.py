"""Servers: one or several, as a read sees them: each topic is on one of them, and its name says which.

Seqs and epochs are those of one server. So a topic that two servers have is refused, instead of two histories being
taken for one. Where a topic is found it stays: a stream keeps the address in its offsets, and a topic that is deleted
there and made anew on another server is lost, as it would be anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topics.spark.client import TOPIC_NOT_FOUND, Client, Plan, find
from topics.spark.errors import ServerRefused, SourceError
from topics.spark.options import Address


class Servers:
    """A connection to each server. `retry_ms` is how long a call is retried."""

    def __init__(self, addresses: tuple[Address, ...], retry_ms: int | None = None) -> None:
        self._addresses = addresses
        self._clients = [Client(address, retry_ms) for address in addresses]
        self._homes: dict[str, int] = {}
        """Which server has a topic, by its place in the list."""

    def close(self) -> None:
        """Close all connections; the next call opens them again."""
        for client in self._clients:
            client.close()

    def topics(self, prefix: str, covers: Callable[[str], bool]) -> list[str]:
        """The names of all topics with this prefix that a read covers, in order."""
        found: dict[str, list[int]] = {}
        for number, client in enumerate(self._clients):
            for name in filter(covers, client.topics(prefix)):
                found.setdefault(name, []).append(number)
        for name, homes in found.items():
            self._set_home(name, homes)
        return sorted(found)

    def plan(self, topic: str, **query: int) -> Plan:
        """The epoch, floors and gaps of a topic."""
        home = self._home(topic)
        plan = self._clients[home].plan(topic, **query)
        plan.server = home
        return plan

    def find(self, topic: str) -> Plan | None:
        """The plan of a topic, or None where it does not exist."""
        return find(self.plan, topic)

    def kind(self, topic: str) -> str:
        """Whether a topic is a `log` or a `queue`."""
        return self._clients[self._home(topic)].kind(topic)

    def deleted(self, topic: str, epoch: int, from_seq: int, to_seq: int) -> list[tuple[int, int]] | None:
        """The runs of seqs in (from_seq, to_seq] that clients deleted, or None where the topic is another one."""
        return self._clients[self._home(topic)].deleted(topic, epoch, from_seq, to_seq)

    def assign_homes(self, homes: Mapping[str, str]) -> None:
        """Take topics to be at these addresses, where a query has read them before."""
        urls = [address.url for address in self._addresses]
        for topic, url in homes.items():
            if url not in urls:
                raise SourceError(
                    f'the query has read topic "{topic}" at {url}, which the option "url" does not name any more; '
                    f"name it, or start the query with a new checkpoint"
                )
            self._homes[topic] = urls.index(url)

    def homes(self, topics: list[str]) -> dict[str, str]:
        """The addresses of these topics; none where there is only one server, which needs no telling."""
        if len(self._addresses) == 1:
            return {}
        return {topic: self._addresses[self._homes[topic]].url for topic in topics if topic in self._homes}

    def _home(self, topic: str) -> int:
        if len(self._clients) == 1:
            return 0
        if topic not in self._homes:
            homes = [number for number, client in enumerate(self._clients) if find(client.plan, topic) is not None]
            if not homes:
                raise ServerRefused(
                    f'topic "{topic}" (options "topic", "topics") exists on none of {self._shown()}',
                    404,
                    TOPIC_NOT_FOUND,
                )
            self._set_home(topic, homes)
        return self._homes[topic]

    def _set_home(self, topic: str, homes: list[int]) -> None:
        known = self._homes.setdefault(topic, homes[0])
        if known not in homes:
            raise SourceError(
                f'topic "{topic}" was read at {self._addresses[known].url}, and is now at '
                f"{self._addresses[homes[0]].url}: what the first held after that is lost (reason: recreated); start "
                f"the query with a new checkpoint"
            )
        if len(homes) > 1:
            urls = " and ".join(self._addresses[number].url for number in homes)
            raise SourceError(
                f'topic "{topic}" is on {urls}: in one read each topic must be on one server, because each counts its '
                f"seqs by itself; read one after the other and join them with union, or name the topics apart"
            )

    def _shown(self) -> str:
        return ", ".join(address.url for address in self._addresses)
