"""Collections are rare while something is planned, and as the caller has set them afterwards."""

import gc

import pytest

from shardopt.support.collection import rare_collection


def test_thresholds_are_restored_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collection():
        assert gc.get_threshold()[0] > before[0]
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_a_caller_who_collects_seldom_already_is_left_alone():
    before = gc.get_threshold()
    gc.set_threshold(30_000_000, 10, 10)
    try:
        with rare_collection():
            assert gc.get_threshold() == (30_000_000, 10, 10)
        assert gc.get_threshold() == (30_000_000, 10, 10)
    finally:
        gc.set_threshold(*before)
