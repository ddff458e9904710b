"""Configs for models and clusters so large that not all candidate stages can be looked at: what is
left out first is what the best plans have least use for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

from shardopt.graph.recomputed_units import MODES
from shardopt.hardware.cluster import Cluster
from shardopt.solve.stages.stage_problem import StageConfig
from shardopt.support.counts import counted

# Intervals of layers on configs, beyond which some configs are left out. The search looks at each
# of them in every round, and keeps a number of eight bytes in each of a dozen arrays.
MANY_CANDIDATES = 20_000_000
_MOST_DIGITS, _FEWEST_DIGITS = 8, 2
# A stage that has its share of the devices four times over waits for all others, and all others for
# one with so many layers.
_UNEVEN = 4


@dataclass(frozen=True)
class FewerConfigs:
    """The configs that are looked at, with stages of at most `most_layers`, and in words which
    these are; no words where they are all."""

    configs: tuple[StageConfig, ...]
    most_layers: int
    kept: tuple[str, ...] = ()

    def allows(self, start: int, end: int, config: StageConfig) -> bool:
        """Whether layers [start, end) are looked at, on any of the configs."""
        del config
        return end - start <= self.most_layers


def number_of_candidates(num_layers: int, configs: Sequence[StageConfig]) -> int:
    """Entries of an array over all intervals of layers on these configs."""
    return (num_layers + 1) ** 2 * len(configs)


def fewer_configs(
    num_layers: int,
    configs: Sequence[StageConfig],
    cluster: Cluster,
    num_stages: int | None,
    stages_per_mesh: int = 1,
) -> FewerConfigs:
    """The configs where they make no more than `MANY_CANDIDATES`. Else, until they make no more,
    without

    1. submeshes of other than round numbers of hosts: round are those that divide the hosts of the
       group, and those with at most eight binary digits before the zeros, or seven, … or two, so
       that the next larger one is at most half as large again;
    2. submeshes of more than four times a stage's share of all devices, or less than a quarter of
       it, in one host group; a layer's share where the number of stages is not known, as there are
       no more stages than layers;
    3. recomputation in some layers of a stage.

    Nothing is left out without which the number of stages could not cover the host group.
    Where something is left out, so are stages of more than four times their share of layers."""
    kept, said = tuple(configs), dict[_Words, None]()
    total = tuple(stages_per_mesh * group.num_devices for group in cluster.groups)
    for keeps, words in _filters(num_layers, cluster, total, num_stages):
        if number_of_candidates(num_layers, kept) <= MANY_CANDIDATES:
            break
        fewer = tuple(config for config in kept if keeps(config))
        if fewer and fewer != kept and _still_cover(fewer, total, num_stages):
            kept = fewer
            said[words] = None
    if not said:
        return FewerConfigs(kept, num_layers)
    texts = [words(kept) for words in said]
    most_layers = min(num_layers, -(-_UNEVEN * num_layers // (num_stages or 1)))
    if most_layers < num_layers:
        texts.append(f"at most {counted(most_layers, 'layer')}")
    return FewerConfigs(kept, most_layers, tuple(texts))


_Keeps = Callable[[StageConfig], bool]
_Words = Callable[[Sequence[StageConfig]], str]


def _filters(
    num_layers: int, cluster: Cluster, total: Sequence[int], num_stages: int | None
) -> Iterator[tuple[_Keeps, _Words]]:
    """What to keep, the first condition first, and what to say of it."""
    for digits in range(_MOST_DIGITS, _FEWEST_DIGITS - 1, -1):
        yield partial(_is_round, cluster=cluster, digits=digits), _submeshes
    if len(total) == 1:
        [devices] = total

        def near(config: StageConfig) -> bool:
            most, least = num_stages or num_layers, num_stages or 1
            size = config.num_devices
            return devices <= _UNEVEN * most * size and least * size <= _UNEVEN * devices

        yield near, _submeshes
    yield (lambda config: config.recompute in MODES), _modes


def _is_round(config: StageConfig, cluster: Cluster, digits: int) -> bool:
    hosts = config.submesh.hosts
    zeros = max(0, hosts.bit_length() - digits)
    return hosts % (1 << zeros) == 0 or cluster.groups[config.group].hosts % hosts == 0


def _still_cover(
    configs: Sequence[StageConfig], total: Sequence[int], num_stages: int | None
) -> bool:
    """Whether so many stages can have all devices of the only host group; of several groups, or
    with any number of stages, the submeshes that are kept can."""
    if num_stages is None or len(total) > 1:
        return True
    return _cover({config.num_devices for config in configs}, total[0], num_stages)


def _cover(sizes: set[int], devices: int, num_stages: int) -> bool:
    """Whether so many stages of these sizes can have all devices."""
    reached = 1  # bit n: n devices
    for _ in range(num_stages):
        reached = reduce(or_, (reached << size for size in sizes), 0) & ((2 << devices) - 1)
    return bool(reached >> devices & 1)


def _submeshes(configs: Sequence[StageConfig]) -> str:
    found = sorted({(each.num_devices, str(each.submesh)) for each in configs})
    return f"submeshes {', '.join(name for _, name in found)}"


def _modes(configs: Sequence[StageConfig]) -> str:
    found = dict.fromkeys(each.recompute for each in configs)
    return f"recomputation {', '.join(found)}"
