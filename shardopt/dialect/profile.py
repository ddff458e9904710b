"""The profile of a cluster's devices inside `shardopt.cluster`: the base of later costs.

profile = {device = "cpu", devices = 4 : i64, speeds = array<f64: 4.0, 2.0, 1.3, 1.0>, measurements
           = [ {kind = "matmul", dtype = "f32", devices = 1 : i64, placement = "intra_host",
            sizes = array<f64: 5.2e+05, 4.2e+06>, seconds = array<f64: 1.1e-05, 7.9e-05>}, …]}
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.hardware.profile import Measurement, Profile


def profile_attr(profile: Profile) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            "device": ir.StringAttr.get(profile.device),
            "devices": i64(profile.devices),
            "speeds": _floats(profile.speeds),
            "measurements": ir.ArrayAttr.get(
                [_measurement_attr(each) for each in profile.measurements]
            ),
        }
    )


def profile_of(attr: ir.Attribute) -> Profile:
    """Raises KeyError or ValueError for an attribute of another form."""
    values = ir.DictAttr(attr)
    return Profile(
        ir.StringAttr(values["device"]).value,
        ir.IntegerAttr(values["devices"]).value,
        tuple(_measurement(ir.DictAttr(row)) for row in ir.ArrayAttr(values["measurements"])),
        tuple(ir.DenseF64ArrayAttr(values["speeds"])),
    )


def _measurement_attr(measurement: Measurement) -> ir.DictAttr:
    return ir.DictAttr.get(
        {
            "kind": ir.StringAttr.get(measurement.kind),
            "dtype": ir.StringAttr.get(measurement.dtype),
            "devices": i64(measurement.devices),
            "placement": ir.StringAttr.get(measurement.placement),
            "sizes": _floats(measurement.sizes),
            "seconds": _floats(measurement.seconds),
        }
    )


def _measurement(row: ir.DictAttr) -> Measurement:
    return Measurement(
        kind=ir.StringAttr(row["kind"]).value,
        sizes=tuple(ir.DenseF64ArrayAttr(row["sizes"])),
        seconds=tuple(ir.DenseF64ArrayAttr(row["seconds"])),
        dtype=ir.StringAttr(row["dtype"]).value,
        devices=ir.IntegerAttr(row["devices"]).value,
        placement=ir.StringAttr(row["placement"]).value,
    )


def _floats(values: Sequence[float]) -> ir.Attribute:
    return ir.DenseF64ArrayAttr.get(list(values))
