"""Which configs are left out where a cluster has too many, and which never are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.recomputed_units import MODES, searched_modes
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.stages import fewer_configs as module
from shardopt.solve.stages.candidates import check_number
from shardopt.solve.stages.fewer_configs import MANY_CANDIDATES, fewer_configs, number_of_candidates
from shardopt.solve.stages.stage_problem import StageConfig, stage_configs

HUGE = load_cluster("a100-80g:384x8")


def with_modes(cluster: Cluster, num_layers: int) -> tuple[StageConfig, ...]:
    return tuple(
        replace(config, recompute=mode)
        for mode in searched_modes(num_layers)
        for config in stage_configs(cluster)
    )


def hosts_of(configs: tuple[StageConfig, ...], width: int = 8) -> list[int]:
    """Numbers of whole hosts."""
    whole = {each.submesh for each in configs if each.submesh.devices_per_host == width}
    return sorted(submesh.hosts for submesh in whole)


def test_a_usual_cluster_keeps_all() -> None:
    cluster = load_cluster("a100-80g:64x8")
    configs = with_modes(cluster, 16)
    fewer = fewer_configs(16, configs, cluster, None)
    assert fewer.configs == configs and not fewer.kept and fewer.most_layers == 16


def test_a_known_number_of_stages_has_stages_near_their_share() -> None:
    """Of 3,072 devices for 64 stages 48 each: 12 to 192, in round numbers of hosts."""
    configs = with_modes(HUGE, 128)
    fewer = fewer_configs(128, configs, HUGE, 64)
    assert hosts_of(fewer.configs) == [2, 3, 4, 6, 8, 12, 16, 24]
    assert {each.recompute for each in fewer.configs} == set(searched_modes(128))
    assert number_of_candidates(128, fewer.configs) <= MANY_CANDIDATES
    check_number(128, fewer.configs)
    sizes = "submeshes 2x8, 3x8, 4x8, 6x8, 8x8, 12x8, 16x8, 24x8"
    assert fewer.kept == (sizes, "at most 8 layers")
    assert fewer.allows(3, 11, configs[0]) and not fewer.allows(3, 12, configs[0])


def test_any_number_of_stages_has_sizes_of_a_layer_and_more() -> None:
    """A layer's share of 3,072 devices is 24, a quarter of that 6."""
    configs = with_modes(HUGE, 128)
    fewer = fewer_configs(128, configs, HUGE, None)
    assert {each.submesh.devices_per_host for each in fewer.configs} == {8}
    assert hosts_of(fewer.configs) == [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384,
    ]  # fmt: skip
    assert {each.recompute for each in fewer.configs} == set(MODES)
    assert number_of_candidates(128, fewer.configs) <= MANY_CANDIDATES
    assert [text.partition(" ")[0] for text in fewer.kept] == ["submeshes", "recomputation"]


def test_less_is_left_out_where_that_is_enough() -> None:
    """48 layers on 1,024 devices: round numbers of hosts are few enough."""
    cluster = load_cluster("a100-80g:128x8")
    fewer = fewer_configs(48, with_modes(cluster, 48), cluster, None)
    [kept] = fewer.kept
    assert kept.startswith("submeshes 1x1, 1x2, 1x4, 1x8, 2x8, 3x8, ") and "33x8" not in kept
    assert {each.recompute for each in fewer.configs} == set(searched_modes(48))


@given(hosts=st.integers(2, 200), share=st.floats(0.05, 1.0))
def test_round_numbers_of_hosts(hosts: int, share: float) -> None:
    """Those that divide all are among them, and none is more than half as large again as the one
    before; no more are left out than have to be."""
    cluster = load_cluster(f"a100-80g:{hosts}x8")
    configs = stage_configs(cluster)
    limit = int(share * number_of_candidates(4, configs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY_CANDIDATES", limit)
        fewer = fewer_configs(4, configs, cluster, None)
    kept = hosts_of(fewer.configs)
    least = min(kept)  # one host may be less than a quarter of a layer's share
    assert {number for number in range(least, hosts + 1) if hosts % number == 0} <= set(kept)
    assert all(2 * after <= 3 * before or after == before + 1
               for before, after in pairwise(kept))  # fmt: skip
    if share == 1.0:
        assert fewer.configs == configs


@given(
    sizes=st.sets(st.integers(1, 9), min_size=1, max_size=4),
    devices=st.integers(1, 24),
    num_stages=st.integers(1, 5),
)
def test_covers(sizes: set[int], devices: int, num_stages: int) -> None:
    expected = any(
        sum(chosen) == devices for chosen in combinations_with_replacement(sizes, num_stages)
    )
    assert module._cover(sizes, devices, num_stages) == expected


def test_stages_near_their_share_have_to_cover_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve hosts of one device for five stages, which could be of one to nine devices; of only
    eight each, no five are twelve."""
    monkeypatch.setattr(module, "MANY_CANDIDATES", 0)
    cluster = load_cluster("a100-80g:12x1")
    wide = tuple(each for each in stage_configs(cluster) if each.num_devices in (8, 12))
    assert {each.num_devices for each in fewer_configs(4, wide, cluster, 5).configs} == {8, 12}
    # Two stages of 389 hosts, a prime number, could not be of at most two binary digits each.
    prime = load_cluster("a100-80g:389x1")
    sizes = {each.num_devices for each in fewer_configs(4, stage_configs(prime), prime, 2).configs}
    assert any(389 - size in sizes for size in sizes)
    every = stage_configs(cluster)
    assert hosts_of(fewer_configs(4, every, cluster, 5).configs, 1) == [1, 2, 3, 4, 6, 8]
