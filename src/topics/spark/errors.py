"""What can go wrong between Spark and a server, in words that a user can act on.

Spark shows the text of an exception from a worker far away from the line that caused it. Therefore each of these names
the option and its value, or the topic and the seqs, and says what to do.
"""

from __future__ import annotations


class SourceError(Exception):
    """The data source cannot go on."""


class BadOption(SourceError):
    """An option of the data source has a value that cannot be used."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        text = str(value)
        shown = text if len(text) <= 200 else text[:200] + "..."
        super().__init__(f'option "{option}" is "{shown}": {reason}')

    def __reduce__(self) -> tuple[object, ...]:
        return SourceError, (str(self),)


class ServerRefused(SourceError):
    """The server answered with an error; `status` and `code` are its own."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.code)


class Unreachable(SourceError):
    """The server could not be reached within the time allowed for retries."""


class DataLoss(SourceError):
    """Records that the query was to read are gone."""

    def __init__(self, topic: str, gap_from: int, gap_to: int, reason: str) -> None:
        super().__init__(
            f'topic "{topic}" lost the records {gap_from} to {gap_to} (reason: {reason}) before they were read; '
            f'set the option "failOnDataLoss" to "false" to go on after them, and "includeTombstones" to "true" to '
            f"get a row for each such gap"
        )
        self.range = (topic, gap_from, gap_to, reason)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.range
