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
def test_children_do_a_part_of_the_work_and_results_are_in_order() -> None:
    found = results([partial(squared, number) for number in range(7)])
    assert [value for value, _ in found] == [0, 1, 4, 9, 16, 25, 36]
    workers = {process for _, process in found}
    assert os.getpid() in workers and len(workers) > 2


@pytest.mark.usefixtures("forking")
def test_no_more_children_than_cores() -> None:
    """All of them wait, so that none is done before the last begins."""

    def wait() -> int:
        time.sleep(0.2)
        return os.getpid()

    found = results([wait] * 4)
    assert found[2:] == [os.getpid()] * 2 and os.getpid() not in found[:2]


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
def test_an_error_ends_the_work_of_all_children() -> None:
    here, there = os.pipe()

    def wait() -> None:
        os.write(there, os.getpid().to_bytes(8))
        signal.pause()

    def refuse() -> None:
        waiting.extend(int.from_bytes(os.read(here, 8)) for _ in range(2))
        raise UserError("not that")

    waiting = list[int]()
    with pytest.raises(UserError, match=r"^not that$"):
        results([wait, wait, refuse])
    assert len(set(waiting)) == 2
    for child in waiting:
        with pytest.raises(ChildProcessError):  # it is no longer there to be waited for
            os.waitpid(child, os.WNOHANG)
    os.close(here)
    os.close(there)


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
