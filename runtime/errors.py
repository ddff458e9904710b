"""The one error of a run that fails, and how a cause is told from its consequences.

One fault shows in many places: when a worker dies, its peers see cut connections, the other hosts
of its mesh fail or abort in a collective, and everybody else is cancelled. Every error therefore
has a kind, and of all that come in together the one of the first kind counts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from shardopt.support.errors import UserError


class FailureKind(IntEnum):
    """What happened to a worker, from causes to consequences."""

    DIED = 0  # its process ended, or its machine is gone
    FAILED = 1  # an instruction raised
    LOST = 2  # a message that was sent never came
    STUCK = 3  # no sign of life, or no progress
    ABORTED = 4  # its process aborted itself, as XLA does when another host of the mesh is gone
    CUT = 5  # a connection to another worker broke
    CANCELLED = 6  # it was told to stop


class MeshError(Exception):
    """Something failed on one host of one mesh; the message names both, and the instruction when
    there is one.

    `worker` is the name of the mesh, or `mesh/host` where the mesh has several hosts.
    """

    def __init__(
        self, worker: str, where: str, cause: str, kind: FailureKind = FailureKind.FAILED
    ) -> None:
        # All arguments, so that it survives pickling.
        super().__init__(worker, where, cause, int(kind))
        self.worker = worker
        self.mesh, _, host = worker.partition("/")
        self.host = int(host or 0)
        self.where = where
        self.cause = cause
        self.kind = FailureKind(kind)

    def __str__(self) -> str:
        return (
            f"mesh '{self.mesh}', host {self.host}{', ' if self.where else ''}{self.where}: "
            f"{self.cause}"
        )


class Cancelled(Exception):
    """This worker was stopped because of a failure somewhere else: the cause, not this, is to be
    reported."""


class PeerGone(ConnectionError):
    """Another worker closed its connection to this one, or it broke."""


class MessageLost(Exception):
    """A message came whose predecessor did not."""


# What errors of a collective say on those that are left when a host of the mesh is gone.
_PEER_WORDS = (
    "gloo",
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "coordination service",
)
_MEMORY_WORDS = ("resource_exhausted", "out of memory", "bad_alloc")


def kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, MeshError):
        return error.kind
    if isinstance(error, Cancelled):
        return FailureKind.CANCELLED
    if isinstance(error, MessageLost):
        return FailureKind.LOST
    # XLA has one type for all errors: only the words tell a peer that is gone from a fault here.
    text = str(error).lower()
    if isinstance(error, ConnectionError | EOFError) or any(word in text for word in _PEER_WORDS):
        return FailureKind.CUT
    return FailureKind.FAILED


def described(error: BaseException) -> str:
    """The first line of an error with its type; running out of memory is called that."""
    text = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {text[0] if text else 'no message'}"
    full = isinstance(error, MemoryError) or any(word in message.lower() for word in _MEMORY_WORDS)
    return f"out of memory ({message})" if full else message


def mesh_error(worker: str, where: str, error: BaseException) -> MeshError:
    """The error of a worker as one that names it; one that does so already stays as it is."""
    if isinstance(error, MeshError):
        return error
    failure = MeshError(worker, where, described(error), kind_of(error))
    failure.__cause__ = error
    return failure


def first_failure(errors: Mapping[str, BaseException]) -> BaseException:
    """Of the errors by worker, in order of their arrival, the first of the kind that is most of a
    cause.

    Errors of the user, which a worker may be the first to see, are handed on as they are.
    """
    error = next((error for error in errors.values() if isinstance(error, UserError)), None)
    if error is not None:
        return error
    name = min(errors, key=lambda name: kind_of(errors[name]))
    return mesh_error(name, "", errors[name])
