"""What differs between the supported versions of jax and jaxlib, asked of the library itself, and
of its number only where nothing else shows it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, TypeAlias

import jaxlib.version
from jaxlib import _jax
from jaxlib.mlir import ir

LocationKind: TypeAlias = Literal["file", "name", "callsite", "fused", ""]
_LOCATION_CLASSES: dict[str, LocationKind] = {
    "FileLineColLoc": "file",
    "NameLoc": "name",
    "CallSiteLoc": "callsite",
    "FusedLoc": "fused",
}

_UNCHECKED = (
    {"_skip_checks": True} if "_skip_checks" in (_jax.array_result_handler.__doc__ or "") else {}
)


def result_handler(aval: Any, sharding: Any) -> Any:
    """What makes one committed array of an execution's shards. Before 0.11, jaxlib has to be told
    not to compare the shards with the abstract value each time."""
    return _jax.array_result_handler(aval, sharding, committed=True, **_UNCHECKED)


def named_shardings_flag(exported: type) -> dict[str, Any]:
    """The field of `jax.export.Exported` that says whether it has named shardings; since jax 0.11
    all have."""
    name = "_has_named_shardings"
    return {name: True} if name in {each.name for each in fields(exported)} else {}


def kernel_options(*, usual_kernels: bool) -> list[tuple[str, bool]]:
    """Options of XLA that choose its older or its usual emitter of kernels. Since jaxlib 0.11 there
    is no choice, and who asks for it is refused."""
    return [("xla_cpu_use_fusion_emitters", usual_kernels)] if _is_before_0_11() else []


def merges_behind_barriers() -> bool:
    """Whether XLA for CPU has to be told to keep barriers, or merges what they are to hold apart.
    Since jaxlib 0.11 it does not merge it; and who tells it gets wrong numbers, as a barrier's
    operand is overwritten while others still read it."""
    return _is_before_0_11()


def _is_before_0_11() -> bool:
    return jaxlib.version.__version_info__ < (0, 11)


def forget_host_meshes() -> None:
    """Before 0.10, JAX keeps every mesh that was ever made, and its devices; since then it lets go
    of those that nobody holds. One that is made again equals the one that was forgotten."""
    from jax._src import mesh

    kept: dict[Any, Any] = getattr(mesh, "_mesh_object_dict", {})
    for key, each in list(kept.items()):
        if each.size and each.devices.flat[0].platform == "cpu":
            kept.pop(key, None)


def keys_can_be_placed() -> bool:
    """Whether an exported function may have shardings of typed keys. Before 0.10.2, jax takes them
    for those of the raw data, which have more dimensions, and makes a module that does not
    verify."""
    from jax import __version_info__

    return __version_info__ >= (0, 10, 2)


def location_kind(location: ir.Location) -> LocationKind:
    """What a location is; "" for those without a place. Since 0.10.1 each kind has a class; before,
    one class has predicates."""
    by_class = _LOCATION_CLASSES.get(type(location).__name__, "")
    if by_class or not hasattr(location, "is_a_file"):
        return by_class
    kinds: tuple[LocationKind, ...] = ("file", "name", "callsite", "fused")
    return next((kind for kind in kinds if getattr(location, f"is_a_{kind}")()), "")


def with_class(location: ir.Location) -> ir.Location:
    """The location as one of its class. Those of diagnostics have none in 0.10.1."""
    if type(location) is not ir.Location or hasattr(location, "is_a_file"):
        return location
    return ir.Location.from_attr(location.attr, location.context)
