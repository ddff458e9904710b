"""Tests that need a GPU. Without one they are skipped, and say so."""

from __future__ import annotations

import pytest

from shardopt.runtime.devices.gpus import visible_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="no GPU found")
    for item in items:
        if "/gpu/" in item.nodeid and not visible_gpus():
            item.add_marker(missing)
