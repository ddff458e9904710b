"""What unit tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.warm.tools import warm_server


@pytest.fixture(scope="session")
def warm_socket() -> Iterator[str]:
    """Of a server of the tools, one for all tests of this process (`tests.warm.tools`)."""
    with warm_server() as socket:
        yield socket
