"""Names that are not known: what was meant, or what is known."""

import ast
from pathlib import Path

from shardopt.passes.remark_kinds import REMARK_KINDS
from shardopt.support.suggestions import unknown_name

PACKAGE = Path(__file__).parents[3] / "shardopt"


def test_the_closest_name_is_meant() -> None:
    known = ("gpipe", "1f1b", "eager-1f1b", "zero-bubble")
    assert (
        unknown_name("schedule", "GPIP", known) == "unknown schedule: 'GPIP'; did you mean 'gpipe'?"
    )
    assert unknown_name("schedule", "1b1f", known).endswith("did you mean '1f1b'?")
    assert unknown_name("preset", "h100", ("v100", "h100-sxm")).endswith("mean 'h100-sxm'?")
    assert unknown_name("field", "devices", ("devices_per_host", "device")).endswith("'device'?")
    assert unknown_name("schedule", "zero", known).endswith("did you mean 'zero-bubble'?")
    assert unknown_name("schedule", "qqq", known).endswith("expected one of " + ", ".join(known))
    assert unknown_name("name", "qqq", [f"n{k}" for k in range(99)]) == "unknown name: 'qqq'"


def test_every_remark_has_its_kind_in_the_table() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in ("remark", "_remark"):
                    used.add(node.args[0].value)
    assert used == set(REMARK_KINDS)
