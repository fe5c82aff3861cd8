"""Keys, scopes, prefixes and the refusal to start unsafe (the AUTH rules)."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from pathlib import Path
from typing import Any

import pytest

from topics.errors import Forbidden, Unauthorized
from topics.server import auth
from topics.server.api.principal import ADMIN, ALL_SCOPES, DELETE, READ, WRITE
from topics.server.auth import Keys, bearer_token, check_exposure, subprotocol_token
from topics.settings import BadSettings, Settings


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("k", ALL_SCOPES, ()),
        ("k:", ALL_SCOPES, ()),
        ("k::", ALL_SCOPES, ()),
        ("k:read", READ, ()),
        ("k:read+write", READ | WRITE, ()),
        ("k:r+w+d+a", ALL_SCOPES, ()),
        ("k:rw", READ | WRITE, ()),
        ("k:rw+delete", READ | WRITE | DELETE, ()),
        ("k:admin:", ADMIN, ()),
        ("k:read:tenant42:", READ, ("tenant42:",)),
        ("k::tenant42:|shared.", ALL_SCOPES, ("tenant42:", "shared.")),
        ("k:w:a:b:c|d:e", WRITE, ("a:b:c", "d:e")),
        ("  k:read  ", READ, ()),
    ],
)
def test_an_entry_is_secret_scopes_prefixes(entry: str, scopes: int, prefixes: tuple[str, ...]) -> None:
    """AUTH-9, with entries such as `dash:read:tenant42:` and `ops::`."""
    principal = Keys(entry).authenticate("k")

    assert (principal.scopes, principal.prefixes) == (scopes, prefixes)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("SECRET:reed", "scopes"),
        ("SECRET:READ", "scopes"),
        ("SECRET:read+", "scopes"),
        ("SECRET:read,OTHER:+", "entry 2"),
        ("SECRET: read", "scopes"),
        ("SECRET:PARTOFSECRET:x", "scopes"),
        (":read", "is empty"),
        ("SECRET,", "entry 2 is malformed: it is empty"),
        ("SECRET,,OTHER", "entry 2"),
        (",", "entry 1"),
        ("SECRET,OTHER,SECRET:read", "entry 3 is malformed: it repeats"),
        ("SEC RET", "characters"),
        ("SECRÉT", "characters"),
        ("SECRET::a||b", "prefixes"),
        ("SECRET::a|", "prefixes"),
        ("SECRET::|", "prefixes"),
        ("SECRET::a b", "prefixes"),
    ],
)
def test_a_malformed_entry_is_refused_without_repeating_it(entries: str, problem: str) -> None:
    """AUTH-16."""
    with pytest.raises(BadSettings, match=problem) as refused:
        Keys(entries)

    message = str(refused.value)
    assert message.startswith("TOPICS_API_KEYS: entry ")
    for part in ("SECRET", "OTHER", "SECRÉT", "reed"):
        assert part not in message


@pytest.mark.parametrize(
    "token", [None, "", b"", "other", "k1 ", "K1", "k1:read", b"\xff\xfe", "\udc80", "k" * 100_000]
)
def test_a_missing_or_unknown_key_is_401(token: str | bytes | None) -> None:
    """AUTH-1."""
    with pytest.raises(Unauthorized) as refused:
        Keys("k1:read,k2").authenticate(token)

    assert (refused.value.status, refused.value.code) == (401, "unauthorized")


def test_each_key_is_its_own_principal_and_always_the_same_one() -> None:
    keys = Keys("k1,k2,k3")

    assert len({id(keys.authenticate(token)) for token in ("k1", "k2", "k3")}) == 3
    assert keys.authenticate("k2") is keys.authenticate(b"k2")


@pytest.mark.parametrize("entries", ["", "  "])
def test_without_keys_everyone_may_do_everything(entries: str) -> None:
    """AUTH-8: no keys is dev mode, and the header is ignored."""
    keys = Keys(entries)

    for token in (None, "anything"):
        principal = keys.authenticate(token)
        principal.require_scopes(ALL_SCOPES)
        principal.require_name("any:name")
        assert principal.key_id is None
    assert len(keys) == 0


def test_a_key_without_the_scope_is_403_and_learns_which_it_lacks() -> None:
    """AUTH-13."""
    principal = Keys("k:read").authenticate("k")

    principal.require_scopes(READ)
    with pytest.raises(Forbidden) as refused:
        principal.require_scopes(READ | WRITE)
    assert (refused.value.status, refused.value.code) == (403, "forbidden")
    assert refused.value.detail == {"required": "read+write", "missing": "write"}


def test_a_name_outside_the_prefixes_is_403() -> None:
    """AUTH-14: a byte prefix against the raw name."""
    principal = Keys("k::tenant42:|shared.").authenticate("k")

    for name in ("tenant42:jobs", "tenant42:", "shared.x"):
        assert principal.may_touch(name)
        principal.require_name(name)
    for name in ("tenant4", "tenant421", "Tenant42:jobs", "xshared.", "", "shared\udc80"):
        assert not principal.may_touch(name)
        with pytest.raises(Forbidden) as refused:
            principal.require_name(name)
        refused.value.message.encode()


def test_every_key_is_compared_even_after_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTH-5."""
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(left: Any, right: Any) -> bool:
        compared.append(left)
        assert len(left) == len(right) == 32
        return real(left, right)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    keys = Keys("k1,k2,k3")
    for token in ("k1", "k3", "wrong"):
        compared.clear()
        try:
            keys.authenticate(token)
        except Unauthorized:
            assert token == "wrong"
        assert compared == [hashlib.sha256(key).digest() for key in (b"k1", b"k2", b"k3")]


def _held_texts(thing: object) -> list[str]:
    """Every str and bytes that `thing` keeps, down to the last slot."""
    if isinstance(thing, (str, bytes)):
        return [repr(thing)]
    if isinstance(thing, (list, tuple)):
        return [text for item in thing for text in _held_texts(item)]
    names = getattr(type(thing), "__slots__", ())
    return [text for name in names for text in _held_texts(getattr(thing, name))]


def test_only_digests_are_kept_and_only_key_ids_are_shown() -> None:
    """AUTH-4, AUTH-6: a key is named by the first 8 hex digits of its digest."""
    keys = Keys("plaintext-one:read:tenant:,plaintext-two")
    ids = [hashlib.sha256(secret).hexdigest()[:8] for secret in (b"plaintext-one", b"plaintext-two")]

    held = _held_texts(keys)
    assert len(held) > 4
    assert not any("plaintext" in text for text in held)
    assert b"plaintext" not in pickle.dumps(keys)
    assert keys.key_ids() == ids
    for shown in (repr(keys), repr(keys.authenticate("plaintext-one")), f"{keys}"):
        assert "plaintext" not in shown
        assert ids[0] in shown


@pytest.mark.parametrize("entries", ["good", "bad:reed"])
def test_the_plaintext_leaves_the_environment_when_it_is_read(entries: str) -> None:
    """AUTH-4: also if the server then refuses to start."""
    environ = {"TOPICS_API_KEYS": entries, "PATH": "/bin"}

    try:
        keys = Keys.take(environ)
        assert keys.authenticate("good")
    except BadSettings:
        assert entries != "good"

    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        (b"", None),
        (b"Bearer k1", b"k1"),
        (b"bearer k1", b"k1"),
        (b"BEARER   k1", b"k1"),
        (b"Bearer k1 ", b"k1"),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearerk1", None),
        (b"Basic k1", None),
        (b"Bearer k1 k2", None),
        (b"k1", None),
    ],
)
def test_the_token_is_what_follows_the_bearer_scheme(header: bytes | None, token: bytes | None) -> None:
    """AUTH-2."""
    assert bearer_token(header) == token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_without_keys_starts(host: str) -> None:
    """AUTH-17, AUTH-18: without keys, loopback is fine."""
    check_exposure(Settings(host=host), Keys())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", "*"])
def test_a_public_bind_without_keys_refuses_to_start(host: str) -> None:
    """AUTH-18."""
    with pytest.raises(BadSettings, match="TOPICS_ALLOW_INSECURE_NO_AUTH=1"):
        check_exposure(Settings(host=host), Keys())

    check_exposure(Settings(host=host), Keys("k"))
    check_exposure(Settings(host=host, allow_insecure_no_auth=True), Keys())


@pytest.mark.parametrize(
    ("offered", "token"),
    [
        (None, None),
        (b"topics", None),
        (b"topics, topics.bearer.czNjcmV0", b"s3cret"),
        (b"topics.bearer.czNjcmV0,topics", b"s3cret"),
        (b"topics.bearer.", None),
        (b"topics.bearer.c", None),
        (b"xtopics.bearer.czNjcmV0", None),
        (b"topics.bearer.czNj*cmV0", None),
    ],
)
def test_the_token_of_a_websocket_is_a_subprotocol(offered: bytes | None, token: bytes | None) -> None:
    """JS-7: in base64url, since a subprotocol is a token."""
    assert subprotocol_token(offered) == token


def test_keys_of_a_file_come_besides_those_of_the_environment(tmp_path: Path) -> None:
    """AUTH-29: one entry per line; empty lines and comments are left out."""
    file = tmp_path / "keys"
    file.write_text("# a comment\n\n  one:read  \r\ntwo:rw:tenant42:\n")
    keys = Keys("zero")
    keys.read_file(file)
    assert len(keys) == 3
    assert keys.authenticate(b"one").scopes == READ
    assert keys.authenticate(b"two").prefixes == ("tenant42:",)
    assert keys.authenticate(b"zero").scopes == ALL_SCOPES


def test_a_key_that_says_the_same_is_the_same_principal(tmp_path: Path) -> None:
    """AUTH-29: its streams and sessions go on; one whose rights have changed is another one."""
    file = tmp_path / "keys"
    file.write_text("same:read\nchanged:read\ngone\n")
    keys = Keys("fixed")
    keys.read_file(file)
    before = {name: keys.authenticate(name) for name in ("fixed", "same", "changed", "gone")}
    file.write_text("new\nchanged:rw\nsame:r\n")
    assert keys.reload() == {before["changed"], before["gone"]}
    assert keys.authenticate("same") is before["same"]
    assert keys.authenticate("fixed") is before["fixed"]
    assert keys.authenticate("changed").scopes == READ | WRITE
    with pytest.raises(Unauthorized):
        keys.authenticate("gone")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("good\nhush-hush:bogus\n", "line 2"),
        ("hush-hush,other\n", "line 1"),
        ("hush-hush\nhush-hush\n", "line 2"),
        ("fixed\n", "line 1"),
        ("# none\n", "no key"),
        ("", "no key"),
        ("x" * (auth.FILE_BYTES_MAX + 1), "larger than"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing_and_is_not_quoted(
    tmp_path: Path, text: str | None, said: str
) -> None:
    """AUTH-29, AUTH-16: at a start it is refused; read again, the keys stay as they were."""
    file = tmp_path / "keys"
    file.write_text("before\n")
    keys = Keys("fixed")
    keys.read_file(file)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    for call in (keys.reload, lambda: Keys("fixed").read_file(file)):
        with pytest.raises(BadSettings) as refused:
            call()
        assert "TOPICS_API_KEYS_FILE" in str(refused.value)
        assert said in str(refused.value)
        assert "hush" not in str(refused.value)
    keys.authenticate("before")
    keys.authenticate("fixed")
