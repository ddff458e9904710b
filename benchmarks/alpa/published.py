"""What Alpa's authors measured: TFLOPS of a GPU, the bars of figures 7 (whole step) and 9
(inter-operator passes).

From the files of the artifact that the figures are drawn from (github.com/alpa-projects/alpa,
osdi22_artifact): `results_e2e.tsv` and `results_inter_ablation.tsv`. -1 there, `OUT_OF_MEMORY`
here, is a run that did not fit. GPT and MoE count the recomputed forward pass among the FLOPs,
Wide-ResNet does not."""

from __future__ import annotations

OUT_OF_MEMORY = 0.0
DEVICES = (1, 2, 4, 8, 16, 32, 64)

# family -> our name of the method -> TFLOPS of a GPU on 1, 2, 4, … 64 of them
_STEP: dict[str, dict[str, tuple[float, ...]]] = {
    "gpt": {
        "shardopt": (45.07, 57.92, 58.21, 61.61, 60.0, 59.9, 57.0),
        "intra-only": (46.2003, 59.5364, 58.3552, 50.8198, 48.423, 35.074, 2.1098),
        "inter-only": (44.2274, 57.9437, 53.9908, 56.5666, 59.6848, 49.804, 50.5459),
        "megatron": (47.53, 55.53, 55.89, 50.44, 56.59, 58.24, 57.84),
    },
    "moe": {
        "shardopt": (45.4621, 43.03, 39.92, 45.76, 45.36, 38.84, 36.55),
        "intra-only": (45.4621, 42.1687, 41.1305, 46.7228, 22.9137, 1.5047, 0.2151),
        "inter-only": (45.4621, 40.7499, 37.5233, 39.7964, 31.1186, OUT_OF_MEMORY, OUT_OF_MEMORY),
        "deepspeed": (34.24, 33.11, 34.67, 40.01, 12.91, 3.82, OUT_OF_MEMORY),
    },
    "wresnet": {
        "shardopt": (8.3, 8.46, 8.16, 8.04, 6.76, 6.6, 5.3),
        "intra-only": (8.3738, 8.4803, 8.1457, 7.7145, 4.7175, 1.9642, 0.6971),
        "inter-only": (8.3, 8.46, 6.47, 5.46, 0.37, OUT_OF_MEMORY, OUT_OF_MEMORY),
        "pp-dp": (8.3, 8.24, 8.08, 7.72, 0.37, OUT_OF_MEMORY, OUT_OF_MEMORY),
    },
}

# The ablation ran on 8, 16 and 32 GPUs.
_ABLATION: dict[str, dict[str, tuple[float, float, float]]] = {
    "gpt": {"equal-layer": (61, 60, 60), "equal-op": (40, 41, 40)},
    "wresnet": {"equal-layer": (6.6, 6.3, 4.1), "equal-op": (7.3, 3.3, 2.5)},
}


def published(family: str, method: str, devices: int) -> float | None:
    """TFLOPS of a GPU; `OUT_OF_MEMORY` where it did not fit, None where it was not run."""
    bars = _STEP[family].get(method)
    if bars is not None:
        return bars[DEVICES.index(devices)]
    ablation = _ABLATION.get(family, {}).get(method)
    return (
        ablation[(8, 16, 32).index(devices)]
        if ablation is not None and devices in (8, 16, 32)
        else None
    )
