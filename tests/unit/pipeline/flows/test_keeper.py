"""A flow is kept running through failures, with pauses, and drained at the end (PIPELINE-21, PIPELINE-22)."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.harness.api import until
from topics.pipeline.flows.flows import Restart
from topics.pipeline.flows.keeper import ERROR_CHARS_MAX, Keeper, Pauses
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.flows.supervisor import Board, Signals, Supervisor
from topics.testing import ManualClock

RESTART = Restart(first_ms=1_000, most_ms=8_000, calm_ms=60_000)


class FakeRun:
    """A run that does what a test says."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows
        self.rate = 10.0
        self.line = f"{rows} rows"
        self.cursors: dict[str, int] | None = {"orders": rows}
        self.active = True
        self.idle = False
        self.failed: str | None = None
        self.stops = 0
        self.news = True

    def look(self) -> bool:
        news, self.news = self.news, False
        return news

    def failure(self) -> str | None:
        return self.failed

    def stop(self) -> None:
        self.stops += 1
        self.active = False

    def fail(self, reason: str) -> None:
        self.active, self.failed = False, reason


class Asked:
    asked = 0


class Kept:
    """A keeper of fake runs, its clock, and how it is asked to stop."""

    def __init__(self, once: bool = False) -> None:
        self.clock = ManualClock()
        self.stop = Asked()
        self.runs: list[FakeRun] = []
        self.refusal: Exception | None = None
        secrets = Secrets({"MY_TOKEN": "very-secret"})
        self.keeper = Keeper(
            "flow", "archive", "orders", self._start, RESTART, self.clock, self.stop, secrets,
            once=once, chance=lambda: 0.5,
        )  # fmt: skip

    def _start(self) -> FakeRun:
        if self.refusal is not None:
            raise self.refusal
        self.runs.append(FakeRun(rows=5))
        return self.runs[-1]

    def step(self, advance_ms: int = 0) -> str:
        self.clock.advance(advance_ms)
        self.keeper.step()
        return self.keeper.state


def test_pauses_double_up_to_a_limit_and_differ_a_little() -> None:
    """PIPELINE-21."""
    pauses = Pauses(RESTART, lambda: 0.5)
    assert [pauses.next_ms() for _ in range(6)] == [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]
    pauses.calm()
    assert pauses.next_ms() == 1_000
    assert [Pauses(RESTART, lambda: 0.0).next_ms(), Pauses(RESTART, lambda: 1.0).next_ms()] == [800, 1_200]
    many = Pauses(RESTART, lambda: 0.5)
    assert [many.next_ms() for _ in range(5_000)][-1] == 8_000


def test_a_flow_that_fails_is_begun_again_after_its_pause() -> None:
    """PIPELINE-21: what it has done before counts on, and what it held is freed."""
    kept = Kept()
    assert kept.step() == "running"
    kept.step()
    kept.runs[0].fail("no space left,\n   key very-secret " + "x" * 1_000)
    assert kept.step() == "waiting"
    now = kept.keeper.now()
    assert (now.restarts, now.rows, now.seq, now.rate) == (1, 5, 5, 0.0)
    assert now.error is not None
    assert now.error.startswith("no space left, key <MY_TOKEN> xxx")
    assert len(now.error) == ERROR_CHARS_MAX
    assert kept.runs[0].stops == 1
    assert kept.step(999) == "waiting"
    assert kept.step(1) == "running"
    kept.step()
    assert kept.keeper.now().rows == 10
    kept.runs[1].fail("again")
    kept.step()
    assert (kept.keeper.pause_ms, kept.step(1_999), kept.step(1)) == (2_000, "waiting", "running")
    assert kept.keeper.now().error == "again", "the last error is shown until it has run for a while"
    assert kept.step(60_000) == "running"
    assert kept.keeper.now().error is None
    kept.runs[2].fail("later")
    kept.step()
    assert kept.keeper.pause_ms == 1_000, "after a calm time the pauses begin anew"
    assert kept.keeper.now().restarts == 3


def test_a_flow_that_cannot_start_or_ends_by_itself_is_begun_again() -> None:
    """PIPELINE-21."""
    kept = Kept()
    kept.refusal = RuntimeError("the lake cannot be opened")
    assert kept.step() == "waiting"
    assert kept.keeper.now().error == "the lake cannot be opened"
    kept.refusal = None
    assert kept.step(1_000) == "running"
    kept.runs[0].active = False
    assert kept.step() == "waiting"
    assert kept.keeper.now().error == "it ended by itself"


def test_the_first_signal_finishes_the_batch_and_the_second_does_not() -> None:
    """PIPELINE-22."""
    kept = Kept()
    kept.step()
    kept.stop.asked = 1
    assert kept.step() == "stopping"
    assert kept.runs[0].stops == 0
    kept.runs[0].idle = True
    assert kept.step() == "stopped"
    assert kept.runs[0].stops == 1
    hurried = Kept()
    hurried.step()
    hurried.stop.asked = 2
    assert hurried.step() == "stopped"
    fails = Kept()
    fails.step()
    fails.stop.asked = 1
    fails.runs[0].fail("broken")
    assert (fails.step(), fails.keeper.now().error) == ("stopped", "broken")
    waits = Kept()
    waits.refusal = RuntimeError("no")
    waits.step()
    waits.stop.asked = 1
    assert waits.step() == "stopped"
    assert waits.keeper.now().error == "no"


def test_once_ends_with_what_there_is_and_fails_for_good() -> None:
    """PIPELINE-21."""
    kept = Kept(once=True)
    kept.step()
    kept.runs[0].active = False
    assert kept.step() == "done"
    failing = Kept(once=True)
    failing.step()
    failing.runs[0].fail("broken")
    assert failing.step() == "failed"
    assert (failing.keeper.now().error, failing.keeper.now().restarts) == ("broken", 0)


def supervised(stop: Signals, starts: dict[str, Callable[[], Any]], once: bool = False) -> list[Keeper]:
    clock, secrets = ManualClock(), Secrets({})
    return [
        Keeper(name, "archive", name, start, RESTART, clock, stop, secrets, once=once)
        for name, start in starts.items()
    ]  # fmt: skip


def test_a_flow_that_fails_or_hangs_does_not_stop_the_others() -> None:
    """PIPELINE-21, PIPELINE-22: one fails, one never comes back from its start, and the third does its work."""
    hangs = threading.Event()
    healthy = FakeRun(rows=7)
    left: list[int] = []

    def fails() -> Any:
        raise RuntimeError("wrong key")

    def never() -> Any:
        hangs.wait()
        raise RuntimeError("too late")

    with Signals(left.append) as stop:
        keepers = supervised(stop, {"bad": fails, "stuck": never, "good": lambda: healthy})
        codes: list[int] = []
        printed = io.StringIO()
        board = Board(keepers, dict, Console(file=printed))
        runs = Supervisor(keepers, stop, lambda: True, board.show)
        thread = threading.Thread(target=lambda: codes.append(runs.run()))
        thread.start()
        bad, stuck, good = keepers
        until(lambda: good.now().rows == 7 and bad.state == "waiting", "the good one works beside the bad one")
        until(lambda: "bad: failed, begins again in " in printed.getvalue(), "the failure is shown")
        until(lambda: "good: 7 rows" in printed.getvalue(), "the progress is shown")
        assert (stuck.state, bad.now().error) == ("starting", "wrong key")
        signal.raise_signal(signal.SIGTERM)
        healthy.idle = True
        until(lambda: good.state == "stopped" and bad.state == "stopped", "those that can, stop")
        assert thread.is_alive()
        hangs.set()
        thread.join(60)
    assert codes == [0]
    assert left == []
    assert (stuck.state, stuck.now().error) == ("stopped", "too late"), "one that fails while it is to stop has stopped"


def test_what_a_flow_has_done_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-21: a look that finds nothing new is no line, and neither is a flow that has done nothing yet."""
    monkeypatch.setattr("topics.pipeline.flows.supervisor.LINE_EVERY_S", 0)
    kept, printed = Kept(), io.StringIO()
    board = Board([kept.keeper], dict, Console(file=printed))
    kept.keeper.step()
    (run,) = kept.runs
    for run.line in ("", "5 rows", "5 rows", "6 rows"):
        run.news = True
        kept.keeper.step()
        board.show()
    assert printed.getvalue().splitlines() == ["flow: running", "flow: 5 rows", "flow: 6 rows"]


def test_a_second_signal_ends_the_process_whatever_it_is_busy_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIPELINE-22."""
    monkeypatch.setattr("topics.pipeline.flows.supervisor.PATIENCE_S", 0.01)
    left: list[int] = []
    with Signals(left.append) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop.asked, left) == (1, [])
        assert stop.file.exists()
        signal.raise_signal(signal.SIGTERM)
        until(lambda: left == [130], "it is left")


def test_an_application_without_spark_ends() -> None:
    """PIPELINE-21: where the JVM is gone no flow can begin again, so the whole is to be started anew."""
    with Signals(lambda code: None) as stop:
        keepers = supervised(stop, {"good": FakeRun})
        assert Supervisor(keepers, stop, lambda: False, lambda: None).run() == 1
        stop.asked = 2
        until(lambda: keepers[0].ended, "the thread of the test ends too")
