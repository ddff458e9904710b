"""The profile database as a JSON file. `docs/guide/profile.md` describes every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardopt.hardware.cluster import Cluster
from shardopt.hardware.profile import INTRA_HOST, KINDS, PLACEMENTS, Measurement, Profile
from shardopt.support.errors import UserError

FORMAT_VERSION = 1

_TOP = ("version", "device", "devices", "speeds", "origin", "measurements")
_ROW = ("kind", "dtype", "devices", "placement", "points")


def load_profile(path: str) -> Profile:
    """Raises UserError with file and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read the profile: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot read the profile: not UTF-8 text") from None
    try:
        return profile_of_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def with_profile(cluster: Cluster, path: str) -> Cluster:
    """The cluster with what a profile file says of its devices; as it is for an empty path.

    In a cluster of several host groups it says it of those that have its device. Raises UserError,
    also for a profile of devices that the cluster does not have."""
    if not path:
        return cluster
    profile = load_profile(path)
    names = dict.fromkeys(group.device.name for group in cluster.groups)
    if profile.device not in names:
        known = " or ".join(f"'{name}'" for name in names)
        raise UserError(
            f"{path}: expected a profile of device {known}, which cluster {cluster} has, "
            f"found one of '{profile.device}'"
        )
    groups = (
        replace(group, device=group.device.with_measured(profile))
        if group.device.name == profile.device
        else group
        for group in cluster.groups
    )
    return replace(cluster, groups=tuple(groups))


def profile_text(profile: Profile) -> str:
    """The file, one measurement a line."""
    values = profile_json(profile)
    rows = values.pop("measurements")
    head = json.dumps(values, indent=2)[:-2]
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    return f'{head},\n  "measurements": [\n{lines}\n  ]\n}}\n'


def profile_json(profile: Profile) -> dict[str, Any]:
    """The values of the file. A point is [size, seconds, spread]."""
    return {
        "version": FORMAT_VERSION,
        "device": profile.device,
        "devices": profile.devices,
        "speeds": list(profile.speeds),
        "origin": dict(profile.origin),
        "measurements": [
            {
                "kind": each.kind,
                "dtype": each.dtype,
                "devices": each.devices,
                "placement": each.placement,
                "points": [
                    list(point)
                    for point in zip(
                        each.sizes,
                        each.seconds,
                        each.spread or (0.0,) * len(each.sizes),
                        strict=True,
                    )
                ],
            }
            for each in profile.measurements
        ],
    }


def profile_of_json(values: Any) -> Profile:
    """Raises ValueError that names the field."""
    if not isinstance(values, dict):
        raise ValueError("expected a mapping of fields")
    if values.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"field 'version': expected {FORMAT_VERSION}, found {values.get('version')!r}"
        )
    _check_fields(values, _TOP, ("device", "devices", "measurements"), "")
    if not isinstance(values["device"], str) or not values["device"]:
        raise ValueError(f"field 'device': expected a name, found {values['device']!r}")
    devices = _count(values["devices"], "devices")
    if not isinstance(values["measurements"], list):
        raise ValueError("field 'measurements': expected a list")
    return Profile(
        values["device"],
        devices,
        tuple(
            _measurement(row, f"measurements[{k}]") for k, row in enumerate(values["measurements"])
        ),
        _numbers(values.get("speeds", [1.0] * devices), "speeds"),
        {str(key): str(value) for key, value in dict(values.get("origin", {})).items()},
    )


def _measurement(row: Any, path: str) -> Measurement:
    if not isinstance(row, dict):
        raise ValueError(f"field '{path}': expected a mapping of fields")
    _check_fields(row, _ROW, ("kind", "points"), f"{path}.")
    for name, known in (("kind", KINDS), ("placement", PLACEMENTS)):
        if row.get(name, known[0]) not in known:
            raise ValueError(
                f"field '{path}.{name}': expected one of {', '.join(known)}, found {row[name]!r}"
            )
    points = row["points"]
    if not isinstance(points, list) or not all(
        isinstance(point, list) and len(point) in (2, 3) for point in points
    ):
        raise ValueError(f"field '{path}.points': expected a list of [size, seconds, spread]")
    columns = [
        _numbers([point[k] if k < len(point) else 0.0 for point in points], f"{path}.points")
        for k in range(3)
    ]
    try:
        return Measurement(
            kind=row["kind"],
            sizes=columns[0],
            seconds=columns[1],
            dtype=str(row.get("dtype", "")),
            devices=_count(row.get("devices", 1), f"{path}.devices"),
            placement=row.get("placement", INTRA_HOST),
            spread=columns[2],
        )
    except ValueError as error:
        raise ValueError(f"field '{path}': {error}") from None


def _check_fields(
    values: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...], prefix: str
) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"unknown field '{prefix}{key}' (known: {', '.join(known)})")
    for key in required:
        if key not in values:
            raise ValueError(f"missing field '{prefix}{key}'")


def _count(value: Any, path: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"field '{path}': expected a positive whole number, found {value!r}")
    return value


def _numbers(values: Any, path: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"field '{path}': expected numbers, found {values!r}")
    return tuple(map(float, values))
