"""What end-to-end tests of several files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One for all tests: starting takes longer than they do."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    yield
    ray.shutdown()
