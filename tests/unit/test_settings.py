"""Settings from the environment and from flags (CLI-1, CLI-2, LIMIT-13)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from topics import settings
from topics.settings import BadSettings, Settings

ORIGINS_ALLOWED = (
    "origins such as `https://app.example.com`, without a path, joined by commas; or `*`, which needs keys"
)
HOSTS_ALLOWED = "host names without a port, joined by commas; `*.` stands for every name below one, `*` for all"


def test_defaults_are_the_documented_ones() -> None:
    """LIMIT-13."""
    given, warnings = settings.read({})

    assert warnings == []
    assert (given.host, given.port, given.data_dir) == ("127.0.0.1", 4000, Path("topics-data"))
    assert (given.probe_auth, given.allow_insecure_no_auth) == (False, False)
    assert (given.max_batch_records, given.max_record_bytes, given.max_body_bytes) == (10_000, 1 << 20, 64 << 20)
    assert given.max_command_bytes == 1 << 20
    assert (given.max_meta_bytes, given.max_tag_bytes, given.max_node_bytes) == (16 << 10, 256, 128)
    assert (given.max_limit, given.max_claim, given.max_watch_topics) == (1000, 1000, 256)
    assert (given.max_topics, given.max_routers, given.max_watch_sessions) == (100_000, 10_000, 10_000)
    assert (given.max_sse_connections, given.max_sse_connections_per_key) == (10_000, 1000)
    assert (given.max_inflight_per_key, given.max_total_bytes) == (1000, 0)
    assert (given.segment_max_events, given.segment_max_bytes) == (10_000, 64 << 20)
    assert (given.segment_max_age_ms, given.hot_retain_segments) == (3_600_000, 4)
    assert given.drain_timeout_ms == 10_000


@pytest.mark.parametrize("setting", settings.table(), ids=lambda setting: setting.name)
def test_every_setting_is_read_from_its_variable_and_documents_itself(setting: dataclasses.Field[object]) -> None:
    """CLI-1."""
    samples: dict[type, tuple[str, object]] = {
        bool: ("true", True),
        int: ("777", 777),
        str: ("debug", "debug"),
        Path: ("/elsewhere", Path("/elsewhere")),
        type(None): ("/elsewhere", Path("/elsewhere")),
        tuple: ("*", ("*",)),
    }
    kind = next(kind for kind in samples if type(setting.default) is kind or isinstance(setting.default, kind))
    special: dict[str, tuple[str, object]] = {
        "wal_shards": ("7", 7),
        "log_format": ("json", "json"),
        "access_log": ("all", "all"),
        "min_free_bytes": ("77777777", 77_777_777),
        "erase_after_ms": ("77777", 77_777),
    }
    text, expected = special.get(setting.name) or samples[kind]

    given, warnings = settings.read({f"TOPICS_{setting.name.upper()}": text})

    assert getattr(given, setting.name) == expected != setting.default
    assert warnings == []
    assert setting.metadata["doc"].endswith(".")


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("TOPICS_PORT", "65536", "a whole number from 0 to 65535"),
        ("TOPICS_PORT", "-1", "a whole number from 0 to 65535"),
        ("TOPICS_PORT", "4e3", "a whole number from 0 to 65535"),
        ("TOPICS_PORT", "4_000", "a whole number from 0 to 65535"),
        ("TOPICS_PORT", "٤٠٠٠", "a whole number from 0 to 65535"),
        ("TOPICS_MAX_BODY_BYTES", "0", "a whole number of at least 1"),
        ("TOPICS_MAX_TOPICS", "9" * 20, "a whole number of at least 0"),
        ("TOPICS_MIN_FREE_BYTES", "0", "a whole number of at least 67108864"),
        ("TOPICS_MIN_FREE_BYTES", "67108863", "a whole number of at least 67108864"),
        ("TOPICS_PROBE_AUTH", "maybe", "true or false (also 1/0, yes/no, on/off)"),
        ("TOPICS_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("TOPICS_HOST", "http://localhost", "an IP address or a host name"),
        *(
            (("TOPICS_CORS_ORIGINS", text, ORIGINS_ALLOWED))
            for text in (
                "app.example.com",
                "https://a.example/",
                "null",
                "https://*.example",
                "https://a.example,",
                "https://a.example https://b.example",
            )
        ),
        *(
            (("TOPICS_ALLOWED_HOSTS", text, HOSTS_ALLOWED))
            for text in ("http://topics", "topics:4000", "a..b", "a.*", "a,,b", ".")
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name_value_and_rule(variable: str, text: str, allowed: str) -> None:
    with pytest.raises(BadSettings) as refused:
        settings.read({variable: text})

    assert str(refused.value) == f"{variable} is {text!r}, but must be {allowed}"


def test_origins_are_compared_as_a_browser_writes_them() -> None:
    """AUTH-24: in lower case, without the usual port of the scheme."""
    text = "HTTPS://App.Example:443, http://localhost:5173 ,http://[::1]:80,tauri://localhost"

    given, _ = settings.read({"TOPICS_CORS_ORIGINS": text})

    assert given.cors_origins == (
        "https://app.example",
        "http://localhost:5173",
        "http://[::1]",
        "tauri://localhost",
    )


def test_host_names_are_in_lower_case_and_without_brackets() -> None:
    """AUTH-21."""
    given, _ = settings.read({"TOPICS_ALLOWED_HOSTS": "Topics, *.internal,[FD00::5],10.0.0.7"})

    assert given.allowed_hosts == ("topics", "*.internal", "fd00::5", "10.0.0.7")


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(BadSettings) as refused:
        settings.read({"TOPICS_PORT": "x", "TOPICS_MAX_TOPICS": "y"}, {"max_claim": "z"})

    assert [line.split()[0] for line in str(refused.value).splitlines()] == [
        "TOPICS_PORT",
        "--max-claim",
        "TOPICS_MAX_TOPICS",
    ]


def test_a_very_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(BadSettings) as refused:
        settings.read({"TOPICS_PORT": "9" * 10_000})

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("cap", ["MAX_TOPICS", "MAX_ROUTERS", "MAX_WATCH_SESSIONS", "MAX_SSE_CONNECTIONS"])
def test_zero_disables_a_resource_cap(cap: str) -> None:
    """LIMIT-2."""
    given, _ = settings.read({f"TOPICS_{cap}": "0"})

    assert getattr(given, cap.lower()) == 0


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on"])
def test_a_switch_takes_the_usual_words(text: str) -> None:
    """CLI-1: both `=1` and `=true`."""
    assert settings.read({"TOPICS_PROBE_AUTH": text})[0].probe_auth is True


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_as_good_as_none(text: str) -> None:
    """AUTH-18, CLI-1: an empty TOPICS_HOST must not come to mean every interface."""
    given, _ = settings.read({"TOPICS_HOST": text, "TOPICS_PORT": text})

    assert given == Settings()


def test_a_flag_wins_over_its_variable() -> None:
    given, _ = settings.read({"TOPICS_PORT": "1", "TOPICS_MAX_TOPICS": "5"}, {"port": "2"})

    assert (given.port, given.max_topics) == (2, 5)


@pytest.mark.parametrize("name", ["host", "port", "data_dir", "cold_dir", "log_level", "probe_auth"])
def test_an_empty_flag_is_refused(name: str) -> None:
    with pytest.raises(BadSettings, match=f"--{name.replace('_', '-')} is ''"):
        settings.read({}, {name: ""})


def test_an_unknown_variable_is_warned_about_with_the_closest_name() -> None:
    given, warnings = settings.read({"TOPICS_MAX_TOPIC": "3", "TOPICS_QQQQQQQQ": "1", "PATH": "/bin"})

    assert given == Settings()
    assert warnings == [
        "TOPICS_MAX_TOPIC is not a setting of this server and does nothing; did you mean TOPICS_MAX_TOPICS?",
        "TOPICS_QQQQQQQQ is not a setting of this server and does nothing",
    ]


def test_variables_of_the_commands_are_no_mistake_of_the_server() -> None:
    """Who talks to a server from the shell that also starts one has them set."""
    assert settings.read({"TOPICS_URL": "http://127.0.0.1:4000", "TOPICS_TOKEN": "s3cret"}) == (Settings(), [])


def test_keys_are_no_setting_and_no_unknown_variable() -> None:
    """AUTH-7: keys have no flag; settings may be printed, so they hold none."""
    given, warnings = settings.read({"TOPICS_API_KEYS": "s3cret"})

    assert warnings == []
    assert "s3cret" not in repr(given)
    about_keys = {setting.name for setting in settings.table() if "key" in setting.name}
    assert {name for name in about_keys if "per_key" not in name} == {"api_keys_file"}


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::1", "::1"), ("localhost", "localhost")])
def test_a_host_may_be_written_as_in_a_url(text: str, host: str) -> None:
    """CLI-1: what the bind takes is an address without brackets."""
    assert settings.read({"TOPICS_HOST": text})[0].host == host
