"""Reading collectives out of HLO text."""

from __future__ import annotations

from shardopt.cost.hlo import HloCollective, count_tensors, parse_collectives

TEXT = """
ENTRY %main (p0: f32[8,8]) -> f32[32,8] {
  %dot.1 = f32[8,8]{1,0} dot(%p0, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %all-reduce.3 = (f32[8,8]{1,0}, bf16[8]{0}) all-reduce(%dot.1, %reduce.2), channel_id=1, replica_groups=[1,4]<=[4]
  %all-gather.4 = f32[32,8]{1,0} all-gather(%dot.1), channel_id=2, dimensions={0}, use_global_device_ids=true
  %get.5 = f32[8,8]{1,0} get-tuple-element(%all-reduce.3), index=0
  %all-to-all.6 = (f32[2,8]{1,0}, f32[2,8]{1,0}) all-to-all(%a, %b), channel_id=3, replica_groups={{0,1}}
  %collective-permute.7 = pred[8]{0} collective-permute(%m), channel_id=4, source_target_pairs={{0,1}}
  %ags = (f32[8]{0}, f32[32]{0}) all-gather-start(%v), channel_id=5, dimensions={0}
  %agd = f32[32]{0} all-gather-done(%ags)
  ROOT %reduce-scatter.8 = f32[2,8]{1,0} reduce-scatter(%dot.1), channel_id=6, dimensions={0}, to_apply=%add
}
"""


def test_kinds_tensors_and_bytes() -> None:
    assert parse_collectives(TEXT) == (
        HloCollective("all-reduce.3", "all_reduce", 2, 8 * 8 * 4 + 8 * 2),
        HloCollective("all-gather.4", "all_gather", 1, 32 * 8 * 4),
        HloCollective("all-to-all.6", "all_to_all", 1, 2 * 2 * 8 * 4),
        HloCollective("collective-permute.7", "permute", 1, 8),
        HloCollective("ags", "all_gather", 1, 32 * 4),
        HloCollective("reduce-scatter.8", "reduce_scatter", 1, 2 * 8 * 4),
    )


def test_tensors_by_kind() -> None:
    counts = count_tensors(parse_collectives(TEXT))
    assert counts == {"all_gather": 2, "all_reduce": 2, "all_to_all": 1, "permute": 1, "reduce_scatter": 1}


def test_other_text_has_no_collectives() -> None:
    assert parse_collectives("%x = f32[8]{0} add(%all-reduce.1, %b)\n// all-reduce(%a), nothing") == ()
