"""Work that copies of this process do."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from functools import partial

import pytest

from shardopt.support import children
from shardopt.support.children import Beside, Child, results
from shardopt.support.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # no threads run here


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a command on a machine with three cores."""
    monkeypatch.setattr(children, "_may_fork", True)
    monkeypatch.setattr(children, "_has_loaded_jax", lambda: False)
    monkeypatch.setattr(children, "cores", lambda: 3)


def squared(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


@pytest.mark.usefixtures("forking")
def test_results_are_in_order_whoever_has_done_the_work() -> None:
    found = results([partial(squared, number) for number in range(7)])
    assert [value for value, _ in found] == [0, 1, 4, 9, 16, 25, 36]


@pytest.mark.usefixtures("forking")
def test_this_process_works_and_a_child_on_each_other_core() -> None:
    def wait() -> int:
        time.sleep(0.1)  # long enough for everybody to take a piece
        return os.getpid()

    workers = set(results([wait] * 8))
    assert os.getpid() in workers and len(workers) == 3


@pytest.mark.usefixtures("forking")
def test_who_is_done_takes_the_next_piece() -> None:
    """One piece ends only when others have done all that is left."""
    here, there = os.pipe()

    def first() -> int:
        for _ in range(9):
            os.read(here, 1)
        return os.getpid()

    def other() -> int:
        os.write(there, b"x")
        return os.getpid()

    busy, *others = results([first, *[other] * 9])
    assert busy not in others
    os.close(here)
    os.close(there)


def test_without_permission_this_process_does_all() -> None:
    assert {process for _, process in results([partial(squared, 3)] * 3)} == {os.getpid()}


@pytest.mark.usefixtures("forking")
def test_who_has_loaded_jax_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_has_loaded_jax", lambda: True)
    assert {process for _, process in results([partial(squared, 3)] * 3)} == {os.getpid()}


@pytest.mark.usefixtures("forking")
def test_what_a_child_raises_is_raised() -> None:
    def refuse() -> tuple[int, int]:
        raise UserError("not that")

    with pytest.raises(UserError, match=r"^not that$"):
        results([refuse, partial(squared, 2)])


@pytest.mark.usefixtures("forking")
def test_pieces_of_a_piece_are_done_by_children_that_have_nothing_left_to_do() -> None:
    parent = os.getpid()

    def wait() -> set[int]:
        time.sleep(0.1)
        return {os.getpid()}

    def outer() -> set[int]:
        time.sleep(0.1)  # long enough for everybody to take a piece
        if os.getpid() != parent:
            return set()
        time.sleep(0.2)  # the children have found nothing else
        return set.union(*results([wait] * 6))

    found = results([outer] * 3)
    assert len(set.union(*found)) == 3


@pytest.mark.usefixtures("forking")
def test_an_error_of_ours_says_where_it_was_in_the_child() -> None:
    parent = os.getpid()

    def fail() -> None:
        time.sleep(0.1)  # long enough for everybody to take a piece
        if os.getpid() != parent:
            raise KeyError("missing")

    with pytest.raises(KeyError, match="missing") as caught:
        results([fail] * 3)
    (note,) = caught.value.__notes__
    assert "in fail" in note


@pytest.mark.usefixtures("forking")
def test_the_first_error_in_order_is_raised_and_no_more_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever raises first: the second piece does so before the first."""
    monkeypatch.setattr(children, "cores", lambda: 2)
    here, there = os.pipe()

    def late() -> None:
        os.read(here, 1)
        raise UserError("the first")

    def early() -> None:
        os.write(there, b"x")
        raise UserError("the second")

    def never() -> None:
        os.write(there, b"y")

    with pytest.raises(UserError, match=r"^the first$"):
        results([late, early, *[never] * 200])
    os.set_blocking(here, False)
    with pytest.raises(BlockingIOError):
        os.read(here, 1)
    os.close(here)
    os.close(there)


@pytest.mark.usefixtures("forking")
def test_an_interrupt_ends_all_children() -> None:
    here, there = os.pipe()
    parent = os.getpid()

    def wait() -> None:
        if os.getpid() != parent:
            os.write(there, os.getpid().to_bytes(8))
            signal.pause()
        waiting.extend(int.from_bytes(os.read(here, 8)) for _ in range(2))
        raise KeyboardInterrupt

    waiting = list[int]()
    with pytest.raises(KeyboardInterrupt):
        results([wait] * 3)
    assert len(set(waiting)) == 2
    for child in waiting:
        with pytest.raises(ChildProcessError):  # it is no longer there to be waited for
            os.waitpid(child, os.WNOHANG)
    os.close(here)
    os.close(there)


@pytest.mark.usefixtures("forking")
def test_what_a_killed_child_took_is_done_here() -> None:
    parent = os.getpid()

    def work(number: int) -> int:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return number

    assert results([partial(work, number) for number in range(6)]) == [*range(6)]


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_what_a_child_does_not_finish_is_done_here(number: signal.Signals) -> None:
    parent = os.getpid()

    def work() -> str:
        if os.getpid() != parent:
            faulthandler.disable()  # it would say where
            os.kill(os.getpid(), number)
        return "done"

    assert Beside(work).result() == "done"


@pytest.mark.usefixtures("forking")
def test_a_child_has_no_children() -> None:
    assert Beside(children.can_fork).result() is False


@pytest.mark.usefixtures("forking")
def test_a_child_ends_with_its_connection() -> None:
    """As it does where the parent is gone."""
    child = Child(lambda connection: print(connection.recv()))
    assert os.WEXITSTATUS(child.wait()) == 1
