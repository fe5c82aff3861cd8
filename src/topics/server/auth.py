"""Keys: which bearer token is which principal (the AUTH rules).

`TOPICS_API_KEYS` is a comma-separated list of `secret`, `secret:scopes`, `secret:scopes:prefixes` or
`secret::prefixes`. Scopes are joined by `+`, prefixes by `|`. The secret ends at the first `:` and the scopes at the
second; the rest is prefixes, which may contain `:` themselves (`dash:read:tenant42:`).

Guarantees:
- Only the SHA-256 digest of a key is kept. The variable leaves the process environment when it is read. CPython cannot
  wipe the memory of a str, so the plaintext is dropped and not overwritten.
- A presented token is hashed and compared with every configured digest in constant time, without an early exit, so that
  timing reveals neither which key matched nor how much of it.
- A malformed entry stops the server. The message names the entry by its position and never repeats a part of it:
  a secret with a stray `:` in it looks like a bad scope.
- A key is named in logs by `key_id`, the first 8 hex digits of its digest.
- Without keys there is one principal that may do everything, and only a loopback bind is accepted unless the operator
  allows another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import MutableMapping

from topics.errors import Unauthorized
from topics.server.api.principal import ALL_SCOPES, READ, SCOPE_NAMES, WRITE, Principal
from topics.settings import KEYS_VARIABLE, BadSettings, Settings

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

    __slots__ = ("_by_digest", "anyone")

    def __init__(self, entries: str = "") -> None:
        """Parse the value of `TOPICS_API_KEYS`; raises `BadSettings` on the first entry that is malformed."""
        self._by_digest: list[tuple[bytes, Principal]] = []
        self.anyone = Principal(None, ALL_SCOPES)
        if not entries.strip():
            return
        for position, entry in enumerate(entries.split(","), start=1):
            digest, principal = _parse_entry(entry.strip(), position)
            if any(digest == known for known, _ in self._by_digest):
                raise _malformed(position, "it repeats the secret of an earlier entry; give each key one entry")
            self._by_digest.append((digest, principal))

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Keys:
        """The keys of `environ`, from which the plaintext is removed even if it is malformed."""
        return cls(environ.pop(KEYS_VARIABLE, ""))

    def __len__(self) -> int:
        return len(self._by_digest)

    def __repr__(self) -> str:
        return f"<Keys {', '.join(self.key_ids()) or 'none, anyone may do everything'}>"

    def key_ids(self) -> list[str]:
        """The names of the keys in logs."""
        return [principal.key_id for _, principal in self._by_digest if principal.key_id is not None]

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
        f"set {KEYS_VARIABLE}, or bind 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 on a trusted network"
    )


def _parse_entry(entry: str, position: int) -> tuple[bytes, Principal]:
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if not entry:
        raise _malformed(position, "it is empty; remove the stray comma")
    if not secret:
        raise _malformed(position, "its secret, the part before the first ':', is empty")
    if _is_secret(secret) is None:
        raise _malformed(position, "its secret holds characters that an Authorization header cannot carry")
    digest = hashlib.sha256(secret.encode("ascii")).digest()
    principal = Principal(
        digest.hex()[:_KEY_ID_CHARS], _parse_scopes(scopes, position), _parse_prefixes(prefixes, position)
    )
    return digest, principal


def _parse_scopes(text: str, position: int) -> int:
    if not text:
        return ALL_SCOPES
    scopes = 0
    for token in text.split("+"):
        if token not in _SCOPE_TOKENS:
            allowed = ", ".join(_SCOPE_TOKENS)
            raise _malformed(position, f"its second field is not a list of scopes joined by '+' (one of {allowed})")
        scopes |= _SCOPE_TOKENS[token]
    return scopes


def _parse_prefixes(text: str, position: int) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = tuple(text.split("|"))
    # An empty prefix is the prefix of every name: `a||b` would quietly grant everything.
    if not all(map(_is_prefix, prefixes)):
        raise _malformed(position, "its third field is not a list of name prefixes joined by '|'")
    return prefixes


def _malformed(position: int, problem: str) -> BadSettings:
    return BadSettings(f"{KEYS_VARIABLE}: entry {position} is malformed: {problem}")
