"""Keys: which bearer token is which principal (the AUTH rules).

`TOPICS_API_KEYS` is a comma-separated list of `secret`, `secret:scopes`, `secret:scopes:prefixes` or
`secret::prefixes`. Scopes are joined by `+`, prefixes by `|`. The secret ends at the first `:` and the scopes at the
second; the rest is prefixes, which may contain `:` themselves (`dash:read:tenant42:`). `TOPICS_API_KEYS_FILE` names a
file with further entries, one per line; it is read again on SIGHUP (AUTH-29).

Guarantees:
- Only the SHA-256 digest of a key is kept. The variable leaves the process environment when it is read. CPython cannot
  wipe the memory of a str, so the plaintext is dropped and not overwritten.
- A presented token is hashed and compared with every configured digest in constant time, without an early exit, so that
  timing reveals neither which key matched nor how much of it.
- A malformed entry stops the server. The message names the entry by its place and never repeats a part of it:
  a secret with a stray `:` in it looks like a bad scope.
- A key is named in logs by `key_id`, the first 8 hex digits of its digest.
- A file that cannot be used when it is read again changes nothing, and neither does one without a key: a server that
  has keys never becomes one without.
- Without keys there is one principal that may do everything, and only a loopback bind is accepted unless the operator
  allows another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path

from topics.errors import Unauthorized
from topics.server.api.principal import ALL_SCOPES, READ, SCOPE_NAMES, WRITE, Principal
from topics.settings import KEYS_VARIABLE, BadSettings, Settings

FILE_VARIABLE = "TOPICS_API_KEYS_FILE"
FILE_BYTES_MAX = 256 << 10
_SCOPE_TOKENS = {name: bit for bit, name in SCOPE_NAMES.items()}
_SCOPE_TOKENS |= {name[0]: bit for name, bit in _SCOPE_TOKENS.items()} | {"rw": READ | WRITE}
_KEY_ID_CHARS = 8
# What an Authorization header can carry as one word; the comma and the colon are delimiters of the list.
_is_secret = re.compile(r"[!-~]+").fullmatch
# The start of some topic or router name.
_is_prefix = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}").fullmatch
_bearer = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]+) *").fullmatch

_subprotocol = re.compile(rb"(?:^|[, ])topics\.bearer\.([A-Za-z0-9_-]+)(?=[, ]|$)").search


class Keys:
    """The keys of a server, as digests."""

    __slots__ = ("_by_digest", "_fixed", "_path", "anyone")

    def __init__(self, entries: str = "") -> None:
        """Parse the value of `TOPICS_API_KEYS`; raises `BadSettings` on the first entry that is malformed."""
        self.anyone = Principal(None, ALL_SCOPES)
        self._path: Path | None = None
        listed = entries.split(",") if entries.strip() else []
        places = ((f"{KEYS_VARIABLE}: entry {i}", entry.strip()) for i, entry in enumerate(listed, start=1))
        self._by_digest = _parse(places, [])
        # Those of the environment, which does not have them any more.
        self._fixed = self._by_digest

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Keys:
        """The keys of `environ`, from which the plaintext is removed even if it is malformed."""
        return cls(environ.pop(KEYS_VARIABLE, ""))

    def read_file(self, path: Path) -> None:
        """Take the keys of a file too; raises `BadSettings` where it cannot be read, is malformed or has none."""
        self._path = path
        self.reload()

    def reload(self) -> frozenset[Principal]:
        """Read the file again; the principals that are not valid any more. Raises `BadSettings`, and changes nothing.

        A key whose entry says the same keeps its principal, and with it its streams and sessions. One whose rights have
        changed is a new one.
        """
        if self._path is None:
            return frozenset()
        found = _parse(_lines(self._path), self._fixed)
        if len(found) == len(self._fixed):
            raise BadSettings(f"{FILE_VARIABLE}: {self._path} has no key in it")
        before = dict(self._by_digest)
        merged = []
        for digest, principal in found:
            old = before.get(digest)
            merged.append((digest, old if old is not None and old.same_rights(principal) else principal))
        self._by_digest = merged
        return frozenset(before.values()) - {principal for _, principal in merged}

    def __len__(self) -> int:
        return len(self._by_digest)

    def __repr__(self) -> str:
        return f"<Keys {', '.join(self.key_ids()) or 'none, anyone may do everything'}>"

    def key_ids(self) -> list[str]:
        """The names of the keys in logs."""
        return [principal.key_id for _, principal in self._by_digest if principal.key_id is not None]

    def principals(self) -> list[Principal]:
        """The principal of each key, in the order of the entries."""
        return [principal for _, principal in self._by_digest]

    def authenticate(self, token: bytes | str | None) -> Principal:
        """The principal of `token`, or `Unauthorized`; without any keys, the one that may do everything."""
        if not self._by_digest:
            return self.anyone
        if token is None:
            raise Unauthorized
        raw = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
        presented = hashlib.sha256(raw).digest()
        matched: Principal | None = None
        for digest, principal in self._by_digest:
            if hmac.compare_digest(digest, presented):
                matched = principal
        if matched is None:
            raise Unauthorized("the key is not known to this server")
        return matched


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token in the value of an `Authorization` header, or None if it holds no bearer token."""
    if authorization is None:
        return None
    match = _bearer(authorization)
    return match[1] if match is not None else None


def subprotocol_token(offered: bytes | None) -> bytes | None:
    """The token among the subprotocols that a WebSocket offers, `topics.bearer.<token in base64url>`, or None.

    A page cannot give its WebSocket any header but this one.
    """
    match = _subprotocol(offered) if offered is not None else None
    if match is None:
        return None
    try:
        return base64.urlsafe_b64decode(match[1] + b"=" * (-len(match[1]) % 4))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a bind to `host` can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings, keys: Keys) -> None:
    """Return if the settings are safe with these keys, raise `BadSettings` otherwise (AUTH-18, AUTH-25)."""
    if not keys and "*" in settings.cors_origins:
        raise BadSettings(
            "TOPICS_CORS_ORIGINS is '*' and there are no keys: every web page that somebody here opens could do "
            f"everything; set {KEYS_VARIABLE}, or name the origins of your own pages"
        )
    if keys or settings.allow_insecure_no_auth or is_loopback(settings.host):
        return
    raise BadSettings(
        f"TOPICS_HOST is {settings.host!r}, which is reachable from other machines, and there are no keys: "
        f"set {KEYS_VARIABLE} or {FILE_VARIABLE}, or bind 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 on a "
        "trusted network"
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The entries of a file, each with its place; raises `BadSettings` where it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{FILE_VARIABLE}: {path} cannot be read: {error.strerror}") from None
    if len(text) > FILE_BYTES_MAX:
        raise BadSettings(f"{FILE_VARIABLE}: {path} is larger than {FILE_BYTES_MAX} bytes")
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield f"{FILE_VARIABLE}: line {number}", entry


def _parse(entries: Iterable[tuple[str, str]], before: list[tuple[bytes, Principal]]) -> list[tuple[bytes, Principal]]:
    """Those that were there before, and the entries, each with its place."""
    parsed = list(before)
    known = {digest for digest, _ in before}
    for place, entry in entries:
        digest, principal = _parse_entry(entry, place)
        if digest in known:
            raise _malformed(place, "it repeats the secret of an earlier entry; give each key one entry")
        known.add(digest)
        parsed.append((digest, principal))
    return parsed


def _parse_entry(entry: str, place: str) -> tuple[bytes, Principal]:
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if not entry:
        raise _malformed(place, "it is empty; remove the stray comma")
    if not secret:
        raise _malformed(place, "its secret, the part before the first ':', is empty")
    if _is_secret(secret) is None or "," in secret:
        raise _malformed(place, "its secret holds characters that an Authorization header cannot carry")
    digest = hashlib.sha256(secret.encode("ascii")).digest()
    principal = Principal(digest.hex()[:_KEY_ID_CHARS], _parse_scopes(scopes, place), _parse_prefixes(prefixes, place))
    return digest, principal


def _parse_scopes(text: str, place: str) -> int:
    if not text:
        return ALL_SCOPES
    scopes = 0
    for token in text.split("+"):
        if token not in _SCOPE_TOKENS:
            allowed = ", ".join(_SCOPE_TOKENS)
            raise _malformed(place, f"its second field is not a list of scopes joined by '+' (one of {allowed})")
        scopes |= _SCOPE_TOKENS[token]
    return scopes


def _parse_prefixes(text: str, place: str) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = tuple(text.split("|"))
    # An empty prefix is the prefix of every name: `a||b` would quietly grant everything.
    if not all(map(_is_prefix, prefixes)):
        raise _malformed(place, "its third field is not a list of name prefixes joined by '|'")
    return prefixes


def _malformed(place: str, problem: str) -> BadSettings:
    return BadSettings(f"{place} is malformed: {problem}")
