"""Reading collectives out of HLO text, and comparing them with a plan."""

from __future__ import annotations

import pytest

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Step
from shardopt.cost.traffic import Traffic, agree, compare, of_step, total
from shardopt.mesh.mesh import Mesh
from shardopt.xla_text.hlo import HloCollective, module_traffic, parse_collectives

LINE = Mesh("m", (("x", 4),), (0, 1, 2, 3))
# Groups in HLO are of logical numbers, not of these.
GRID = Mesh("m", (("x", 2), ("y", 2)), (4, 5, 6, 7))

TEXT = """
ENTRY %main (p0: f32[8,8]) -> f32[32,8] {
  %dot.1 = f32[8,8]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %all-reduce.3 = (f32[8,8]{1,0}, bf16[8]{0}) all-reduce(%dot.1, %reduce.2), channel_id=1, replica_groups=[1,4]<=[4]
  %all-gather.4 = f32[32,8]{1,0} all-gather(%dot.1), channel_id=2, dimensions={0}, use_global_device_ids=true
  %get.5 = f32[8,8]{1,0} get-tuple-element(%all-reduce.3), index=0
  %all-to-all.6 = (f32[2,8]{1,0}, f32[2,8]{1,0}) all-to-all(%a, %b), channel_id=3, replica_groups={{0,1,2,3}}
  %p = pred[8]{0} collective-permute(%m), source_target_pairs={{0,0},{1,2},{2,1},{3,3}}, metadata={op_name="a}}"}
  %ags = (f32[8]{0}, f32[32]{0}) all-gather-start(%v), channel_id=5, dimensions={0}, metadata={op_name="jit(f)/add"}
  %agd = f32[32]{0} all-gather-done(%ags)
  ROOT %reduce-scatter.8 = f32[2,8]{1,0} reduce-scatter(%dot.1), channel_id=6, dimensions={0}, to_apply=%add
}
"""

LOOP = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %all-reduce.1 = f32[8]{0} all-reduce(%g), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
}

%condition (p: (s32[], f32[8])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p0: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %all-reduce.2 = f32[8]{0} all-reduce(%h), channel_id=2, replica_groups={{0,2},{1,3}}, to_apply=%add
}
"""


def test_kinds_tensors_and_bytes() -> None:
    everywhere = ("x",)
    assert parse_collectives(TEXT, LINE) == (
        HloCollective("all-reduce.3", "all_reduce", (8 * 8 * 4, 8 * 2), everywhere),
        HloCollective("all-gather.4", "all_gather", (32 * 8 * 4,), everywhere),
        HloCollective("all-to-all.6", "all_to_all", (2 * 2 * 8 * 4,), everywhere),
        HloCollective("p", "permute", (8,), everywhere, source="a}}"),
        HloCollective("ags", "all_gather", (32 * 4,), everywhere, source="jit(f)/add"),
        HloCollective("reduce-scatter.8", "reduce_scatter", (4 * 2 * 8 * 4,), everywhere),
    )


def test_a_loop_counts_its_collectives_once_a_trip() -> None:
    assert module_traffic(LOOP, GRID) == (
        Traffic("all_reduce", ("x",), 1, 32),
        Traffic("all_reduce", ("y",), 5, 5 * 32),
    )


FOLDED = """
ENTRY %main (p0: f32[8]) -> f32[8] {
  %ar.1 = (f32[8]{0}, f32[4]{0}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %first = f32[8]{0} get-tuple-element(%ar.1), index=0
  %second = f32[4]{0} get-tuple-element(%ar.1), index=1
  %turned = f32[2,2]{1,0} bitcast(%second)
  %ar.2 = (f32[8]{0}, f32[2,2]{1,0}) all-reduce(%c, %turned), channel_id=2, replica_groups={{0,2},{1,3}}, to_apply=%add
  %ar.3 = f32[8]{0} all-reduce(%first), channel_id=3, replica_groups={{0,2},{1,3}}, to_apply=%add
  ROOT %out = f32[8]{0} add(%ar.3, %first)
}
"""


def test_an_all_reduce_of_an_all_reduce_runs_along_both_axes() -> None:
    """The second tensor of the first goes on into the second; the first one is read otherwise,
    too."""
    assert [(c.name, c.sizes, c.axes) for c in parse_collectives(FOLDED, GRID)] == [
        ("ar.1", (32,), ("y",)),
        ("ar.2", (32,), ("x",)),
        ("ar.2", (16,), ("x", "y")),
        ("ar.3", (32,), ("x",)),
    ]


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("replica_groups={{0,1},{2,3}}", ("y",)),
        ("replica_groups={{0,2},{1,3}}", ("x",)),
        ("replica_groups={}", ("x", "y")),
        ("replica_groups={{3,1,0,2}}", ("x", "y")),
        ("replica_groups={{0,3},{1,2}}", ("?",)),
        ("replica_groups=[2,2]<=[4]", ("y",)),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ("x",)),
        ("replica_groups=[1,4]<=[4]", ("x", "y")),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ("x",)),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=2] {'c'}", ("y",)),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=2], device_ids=([2,2]T(1,0)) {'a'}", ("y",)),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", ("y",)),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", ("x",)),
        ("replica_groups=mesh['a'=4], device_ids=(0,2,1,3) {'a':(1)2}", ("y",)),
    ],
)
def test_axes_of_groups(groups: str, axes: tuple[str, ...]) -> None:
    line = f"  %r = f32[8]{{0}} all-reduce(%g), channel_id=1, {groups}, to_apply=%add"
    [collective] = parse_collectives(f"ENTRY %m (a: f32[]) -> f32[] {{\n{line}\n}}\n", GRID)
    assert collective.axes == axes


def test_other_text_has_no_collectives() -> None:
    assert (
        parse_collectives("%x = f32[8]{0} add(%all-reduce.1, %b)\n// all-reduce(%a), nothing", LINE)
        == ()
    )


def test_a_step_counts_what_a_device_holds() -> None:
    assert of_step(Step(ALL_TO_ALL, ("y", "x"), 4096.0), GRID, 2) == Traffic(
        ALL_TO_ALL, ("x", "y"), 2, 2048
    )
    assert of_step(Step(ALL_GATHER, ("y",), 4096.0), GRID) == Traffic(ALL_GATHER, ("y",), 1, 4096)


def test_plan_and_module_are_compared_by_kind_and_axes() -> None:
    plan = total([Traffic(REDUCE_SCATTER, ("x",), 1, 5000), Traffic(ALL_REDUCE, ("x",), 1, 5000)])
    same = (Traffic(ALL_REDUCE, ("x",), 2, 10000),)  # as the CPU backend writes it
    [row] = compare(plan, same)
    assert (row.kind, row.predicted_tensors, row.found_tensors, row.excess_bytes) == (
        "reduced",
        2,
        2,
        0,
    )
    assert agree([row], 0.0)
    elsewhere = compare(plan, (Traffic(ALL_REDUCE, ("y",), 2, 10000),))
    assert [row.excess_bytes for row in elsewhere] == [-10000, 10000] and not agree(elsewhere, 0.05)
    more = (*same, Traffic(ALL_GATHER, ("x",), 1, 499))
    assert agree(compare(plan, more), 0.05) and not agree(compare(plan, more), 0.01)
