"""How long a run may seem not to get on before it is given up: options of `open_run`, and flags of
`shardopt run`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from shardopt.options.table import row
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class Limits:
    """When a run that does not get on is given up. `progress_seconds` must be longer than the
    longest RUN of the program. Raises UserError for one that is not positive."""

    silence_seconds: float = row(
        20.0,
        help="give the run up when a worker has given no sign of life for so long",
        metavar="SECONDS",
    )
    message_seconds: float = row(
        10.0,
        help="give the run up when a message has not come so long after it was handed over, "
        "with nothing on its way",
        metavar="SECONDS",
    )
    progress_seconds: float = row(
        600.0,
        help="give the run up when no worker got on and no bytes moved for so long",
        metavar="SECONDS",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            seconds = getattr(self, each.name)
            if not seconds > 0:
                raise UserError(
                    f"limit {each.name}: expected a positive number of seconds, found {seconds:g}"
                )


DEFAULT_LIMITS = Limits()
