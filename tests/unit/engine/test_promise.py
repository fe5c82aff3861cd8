"""A promise that follows another finishes as that one does, whenever it began to follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topics.engine import Engine, Write
from topics.engine.journal import Ticket
from topics.engine.promise import Promise, Receipt
from topics.errors import StorageReadOnly
from topics.testing import ManualClock


def a_ticket() -> Ticket:
    engine = Engine(ManualClock())
    engine.write("t", Write.of([1]))
    return Ticket(engine.topics["t"], None, None)


KINDS = pytest.mark.parametrize("make", [Promise, Receipt, a_ticket])


@KINDS
def test_follower_of_what_is_done_is_done(make: Callable[[], Promise]) -> None:
    other, follower = Promise(), make()
    other.commit(1, 2)
    follower.follow(other)
    assert follower.done
    assert follower.error is None


@KINDS
def test_follower_of_what_has_failed_fails(make: Callable[[], Promise]) -> None:
    other, follower = Promise(), make()
    other.fail(StorageReadOnly())
    follower.follow(other)
    assert follower.error is other.error


@KINDS
def test_follower_waits_and_ends_with_what_it_follows(make: Callable[[], Promise]) -> None:
    good, bad = Promise(), Promise()
    first, second = make(), make()
    first.follow(good)
    second.follow(bad)
    assert not first.done
    assert not second.done
    good.commit(3, 4)
    bad.fail(StorageReadOnly())
    assert (first.done, first.error, first.write_ns, first.sync_ns) == (True, None, 3, 4)
    assert second.error is bad.error


@KINDS
def test_follower_of_nothing_is_done_at_once(make: Callable[[], Promise]) -> None:
    follower = make()
    follower.follow(None)
    assert follower.done


@KINDS
def test_follower_of_several_fails_with_the_one_that_failed_once_all_are_over(make: Callable[[], Promise]) -> None:
    others, follower = [Promise(), Promise(), Promise()], make()
    others[0].commit(0, 0)
    follower.follow_all(others)
    others[2].fail(StorageReadOnly())
    assert not follower.done
    others[1].commit(0, 0)
    assert follower.error is others[2].error
