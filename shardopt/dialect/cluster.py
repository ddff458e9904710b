"""`shardopt.cluster` on the module: the cluster a plan was made for, so that later passes need no
file.

    module attributes {shardopt.cluster =
        {name = "cpu-test", hosts = 1 : i64, devices_per_host = 4 : i64, …}}

The attribute has the fields of a cluster file (`docs/guide/cluster.md`), and is checked as one.
Devices may have a `profile`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from shardopt.dialect.attributes import from_values, to_values
from shardopt.dialect.profile import profile_attr, profile_of
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import DESCRIPTION, checked_cluster, describe, load_cluster
from shardopt.hardware.profile_file import with_profile
from shardopt.support.documents import errors_of
from shardopt.support.errors import UserError

CLUSTER = "shardopt.cluster"


def write_cluster(module: ir.Module, cluster: Cluster) -> None:
    values = describe(cluster)
    for fields, group in zip(values.get("groups", [values]), cluster.groups, strict=True):
        if group.device.profile is not None:
            fields["device"]["profile"] = profile_attr(group.device.profile)
    module.operation.attributes[CLUSTER] = from_values(values)


def read_cluster(module: ir.Module) -> Cluster:
    """Raises ValueError when the module carries none, or one that is not described well."""
    if CLUSTER not in module.operation.attributes:
        raise ValueError(
            f"expected attribute '{CLUSTER}' on the module (written by the stage phase), found none"
        )
    attribute = module.operation.attributes[CLUSTER]
    values = to_values(attribute)
    cluster, errors = errors_of(DESCRIPTION, _without_profiles(values))
    if errors:
        raise ValueError(f"attribute '{CLUSTER}': {errors[0]}")
    try:
        checked_cluster(cluster)
    except UserError as error:
        raise ValueError(f"attribute '{CLUSTER}': {error}") from error
    devices = [
        ir.DictAttr(ir.DictAttr(group)["device"]) for group in _group_attrs(ir.DictAttr(attribute))
    ]
    profiles = [
        profile_of(device["profile"]) if "profile" in device else None for device in devices
    ]
    pairs = zip(cluster.groups, profiles, strict=True)
    groups = tuple(
        replace(group, device=group.device.with_measured(profile)) for group, profile in pairs
    )
    return replace(cluster, groups=groups)


def cluster_of(module: ir.Module, spec: str, profile: str = "") -> Cluster:
    """The cluster named by a pass option, else the one the module carries; with what a profile file
    says, if one is named. Raises UserError or ValueError."""
    return with_profile(load_cluster(spec) if spec else read_cluster(module), profile)


def _group_attrs(attribute: ir.DictAttr) -> list[ir.Attribute]:
    return list(ir.ArrayAttr(attribute["groups"])) if "groups" in attribute else [attribute]


def _without_profiles(values: Any) -> Any:
    """A profile is no part of a cluster file."""
    if isinstance(values, list):
        return [_without_profiles(item) for item in values]
    if isinstance(values, dict):
        return {name: _without_profiles(item) for name, item in values.items() if name != "profile"}
    return values
