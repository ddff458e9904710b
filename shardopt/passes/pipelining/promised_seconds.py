"""The step of a finished plan against the one that its stages were chosen for.

The stage phase chooses by seconds of candidates, and the shard phase plans what was chosen in
detail, within the memory of its devices. Where the two differ, other stages might be better."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import KIND
from shardopt.dialect.prediction import PlannedPrediction
from shardopt.dialect.program import StepProgram, body_of
from shardopt.extract.pipeline_graph import fragment_seconds
from shardopt.passes.base import PassContext

# What is told to the user, as a share of the promised step. Finished plans of small models are
# within 1 % (benchmarks.solve.stage_account).
_TOLERANCE = 0.05


def report_promise(
    program: StepProgram, promised: PlannedPrediction, makespan_seconds: float, pm: PassContext
) -> None:
    """A warning where the step takes longer than was promised, a remark where it is shorter."""
    step = makespan_seconds + _outside_seconds(program)
    if abs(step - promised.step_seconds) <= _TOLERANCE * promised.step_seconds:
        return
    share = abs(step / promised.step_seconds - 1)
    message = (
        f"a step of the finished plan takes {step:.4g} s, {share:.0%} "
        f"{'more' if step > promised.step_seconds else 'less'} than the "
        f"{promised.step_seconds:.4g} s that its stages were chosen for"
    )
    if step > promised.step_seconds:
        pm.warning(program.loop, message)
    else:
        pm.remark("promised-seconds", program.loop, message, category="analysis")


def _outside_seconds(program: StepProgram) -> float:
    """Of the mesh that takes longest before and behind the loop."""
    of_mesh: dict[str, float] = {}
    for op in body_of(program.main_block):
        if op.name == "mpmd.fragment" and KIND in op.attributes:
            mesh = ir.StringAttr(op.attributes["mesh_name"]).value
            of_mesh[mesh] = of_mesh.get(mesh, 0.0) + fragment_seconds(op)
    return max(of_mesh.values(), default=0.0)
