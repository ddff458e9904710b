"""`shardopt.cluster` on the module: the cluster a plan was made for, so that later passes need no file.

module attributes {shardopt.cluster = {name = "cpu-test", hosts = 1 : i64, devices_per_host = 4 : i64, …}}
"""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.cost.cluster import Cluster, Device, Link, load_cluster
from shardopt.cost.profile_file import with_profile
from shardopt.dialect.attributes import f64, i64
from shardopt.dialect.profile import profile_attr, profile_of

CLUSTER = "shardopt.cluster"


def write_cluster(module: ir.Module, cluster: Cluster) -> None:
    device = cluster.device
    profile = {} if device.profile is None else {"profile": profile_attr(device.profile)}
    module.operation.attributes[CLUSTER] = ir.DictAttr.get(
        {
            "name": ir.StringAttr.get(cluster.name),
            "hosts": i64(cluster.hosts),
            "devices_per_host": i64(cluster.devices_per_host),
            "device": ir.DictAttr.get(
                {
                    "name": ir.StringAttr.get(device.name),
                    "peak_flops": ir.DictAttr.get({key: f64(rate) for key, rate in device.peak_flops.items()}),
                    "memory_bytes": i64(device.memory_bytes),
                    "memory_bandwidth": f64(device.memory_bandwidth),
                    **profile,
                }
            ),
            "intra_host": _link_attr(cluster.intra_host),
            "inter_host": _link_attr(cluster.inter_host),
            "dispatch_seconds": f64(cluster.dispatch_seconds),
        }
    )


def read_cluster(module: ir.Module) -> Cluster:
    """Raises ValueError when the module carries none."""
    if CLUSTER not in module.operation.attributes:
        raise ValueError(f"expected attribute '{CLUSTER}' on the module (written by the stage phase), found none")
    top = ir.DictAttr(module.operation.attributes[CLUSTER])
    device = ir.DictAttr(top["device"])
    rates = ir.DictAttr(device["peak_flops"])
    return Cluster(
        name=_text(top["name"]),
        hosts=_int(top["hosts"]),
        devices_per_host=_int(top["devices_per_host"]),
        device=Device(
            name=_text(device["name"]),
            peak_flops={rates[k].name: _float(rates[k].attr) for k in range(len(rates))},
            memory_bytes=_int(device["memory_bytes"]),
            memory_bandwidth=_float(device["memory_bandwidth"]),
            profile=profile_of(device["profile"]) if "profile" in device else None,
        ),
        intra_host=_link(ir.DictAttr(top["intra_host"])),
        inter_host=_link(ir.DictAttr(top["inter_host"])),
        dispatch_seconds=_float(top["dispatch_seconds"]),
    )


def cluster_of(module: ir.Module, spec: str, profile: str = "") -> Cluster:
    """The cluster named by a pass option, else the one the module carries; with what a profile file says, if one is
    named. Raises UserError or ValueError."""
    return with_profile(load_cluster(spec) if spec else read_cluster(module), profile)


def _link_attr(link: Link) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            "latency_seconds": f64(link.latency_seconds),
            "bandwidth_bytes_per_second": f64(link.bandwidth_bytes_per_second),
        }
    )


def _link(attrs: ir.DictAttr) -> Link:
    return Link(_float(attrs["latency_seconds"]), _float(attrs["bandwidth_bytes_per_second"]))


def _text(attr: ir.Attribute) -> str:
    return ir.StringAttr(attr).value


def _int(attr: ir.Attribute) -> int:
    return ir.IntegerAttr(attr).value


def _float(attr: ir.Attribute) -> float:
    return ir.FloatAttr(attr).value
