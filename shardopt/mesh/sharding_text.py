"""Shardings as people write them: `[{x}, {}]`, and `[{}, {}] + {y}` for a value whose terms lie
along axis y."""

from __future__ import annotations

import re
from functools import lru_cache

from shardopt.mesh.mesh import Sharding

_FORM = re.compile(r"\[(?P<dims>[^\[\]]*)\](?:\s*\+\s*\{(?P<unreduced>[^{}]*)\})?")
_DIMS = re.compile(r"\s*(\{[^{}]*\}\s*(,\s*\{[^{}]*\}\s*)*)?")


def sharding_text(sharding: Sharding) -> str:
    dims = "[" + ", ".join("{" + ", ".join(dim) + "}" for dim in sharding.dims) + "]"
    return dims + (" + {" + ", ".join(sharding.unreduced) + "}" if sharding.unreduced else "")


@lru_cache(maxsize=65536)  # few shardings stand on many values
def parse_sharding(text: str) -> Sharding:
    """Raises ValueError for another form."""
    match = _FORM.fullmatch(text.strip())
    if match is None or not _DIMS.fullmatch(match["dims"]):
        raise ValueError(f"expected a sharding such as '[{{x}}, {{}}]', found {text!r:.80}")
    dims = tuple(_axes(dim) for dim in re.findall(r"\{([^{}]*)\}", match["dims"]))
    return Sharding(dims, _axes(match["unreduced"] or ""))


def _axes(text: str) -> tuple[str, ...]:
    return tuple(axis.strip() for axis in text.split(",") if axis.strip())
