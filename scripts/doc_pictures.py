"""The picture of docs/concepts/resharding.md: one transfer, planned in two ways."""

from __future__ import annotations

from pathlib import Path


def resharding_pictures(folder: Path) -> dict[Path, str]:
    """Rows on the four devices of one host become replicas on two hosts: whole tiles sent, and
    pieces gathered."""
    from shardopt.hardware.cluster_file import load_cluster
    from shardopt.mesh.mesh import Mesh, Sharding
    from shardopt.report.resharding_svg import resharding_svg
    from shardopt.solve.resharding.transfers import plan_resharding

    cluster = load_cluster("a100-80g:3x4")
    source = Mesh("m0", (("x", 4),), (0, 1, 2, 3)), Sharding((("x",), ()))
    target = Mesh("m1", (("x", 8),), tuple(range(4, 12))), Sharding(((), ()))
    pictures = {}
    for strategy in ("send_recv", "local_allgather"):
        plan = plan_resharding((8192, 4096), 2, source, target, cluster, strategy)
        phases = [plan.messages(phase) for phase in range(len(plan.phases))]
        title = f"{strategy}: bf16 8192×4096, rows on one host to replicas on two"
        pictures[folder / "concepts" / "resharding" / f"{strategy}.svg"] = resharding_svg(
            cluster, phases, title
        )
    return pictures
