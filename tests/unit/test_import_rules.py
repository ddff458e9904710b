"""Who may import whom, read from the source, and what an import or a `--help` loads, seen in a
fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from shardopt.passes import registry
from shardopt.passes.base import Pass

ROOT = Path(__file__).parents[2]

# Each package, and the packages of ours that it may import at all, inside functions too: only such
# as stand above it.
ALLOWED: dict[str, set[str]] = {
    "support": set(),
    "caching": set(),
    "options": set(),
    "models": set(),
    "mesh": {"support"},
    "graph": {"support", "mesh"},
    "hardware": {"support", "mesh"},
    "planfile": {"support", "options", "mesh", "graph", "hardware"},
    "cost": {"mesh", "graph", "hardware"},
    "xla_text": {"mesh", "cost"},
    "schedule": {"support", "hardware"},
    "solve": {
        "support",
        "options",
        "caching",
        "mesh",
        "graph",
        "hardware",
        "planfile",
        "cost",
        "schedule",
    },
    "ir": {"support"},
    "dialect": {"support", "mesh", "hardware", "planfile", "schedule", "ir"},
    "extract": {"support", "mesh", "graph", "hardware", "cost", "schedule", "ir", "dialect"},
    "forms": {
        "support",
        "mesh",
        "graph",
        "hardware",
        "cost",
        "schedule",
        "ir",
        "dialect",
        "extract",
    },
    "passes": {
        *(
            "support",
            "options",
            "mesh",
            "graph",
            "hardware",
            "planfile",
            "cost",
            "schedule",
            "solve",
        ),
        *("ir", "dialect", "extract", "forms"),
    },
    "pipeline": {"support", "ir", "passes"},
    "reduce": {"support", "ir", "passes", "pipeline"},
    "report": {
        "support",
        "mesh",
        "hardware",
        "planfile",
        "cost",
        "schedule",
        "ir",
        "dialect",
        "extract",
        "forms",
    },
    "runtime": {
        "support",
        "options",
        "caching",
        "mesh",
        "hardware",
        "cost",
        "schedule",
        "ir",
        "dialect",
        "forms",
    },
    "frontend": {
        *("support", "options", "caching", "mesh", "hardware", "planfile", "schedule"),
        *("ir", "dialect", "extract", "forms", "passes", "pipeline", "report", "runtime"),
    },
    "measured": {
        *("support", "hardware", "planfile", "schedule"),
        *("dialect", "extract", "forms", "frontend", "ir", "models"),
    },
    "tools": {
        "measured",
        *("support", "options", "mesh", "hardware", "planfile", "schedule", "solve"),
        *("ir", "forms", "passes", "pipeline", "reduce", "report", "runtime", "frontend"),
    },
}
# Packages that are all rooms: no file lies beside their folders, and a room imports only from those
# named before it.
ROOMS: dict[str, tuple[str, ...]] = {
    "frontend": ("calls", "spmd", "plans", "planning", "steps"),
    "solve/sharding": ("kernels", "compilers", "strategies", "intra_op", "plans", "budget"),
}
# The layers that run without MLIR, JAX or Ray, and what stands for those.
PURE = {
    "support",
    "options",
    "caching",
    "mesh",
    "graph",
    "hardware",
    "planfile",
    "cost",
    "xla_text",
    "schedule",
    "solve",
}
IMPURE_MODULES = {"jax", "jaxlib", "ray", "cupy"}
# Modules too slow to load before they are needed, and the packages whose files may import them at
# the top.
HEAVY = {
    "jax": {"runtime", "frontend", "models"},
    "ray": {"runtime"},
    "cupy": {"runtime"},
    "ortools": set(),
    "numba": {"solve"},
}


@dataclass(frozen=True)
class Import:
    """One imported module: in which package and file, on which line, and whether the import runs
    with the file."""

    package: str
    file: str
    line: int
    module: str
    at_top: bool

    @property
    def module_name(self) -> str:
        """The importing module, `shardopt.ir.context`."""
        name = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"shardopt.{name}" if name.startswith("runtime") else name

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(tree: ast.AST, at_top: bool = True) -> Iterator[tuple[int, str, bool]]:
    """(line, module, runs with the file); what stands under `if TYPE_CHECKING` never runs and is
    left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide who imports whom"
            # `from shardopt.solve import stages` imports a module; `from x import name` at worst
            # names one more
            yield from (
                (node.lineno, f"{node.module}.{alias.name}", at_top) for alias in node.names
            )
        elif isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        ):
            yield from imports_of(ast.Module(node.orelse, []), at_top)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, at_top and not inside)


@cache
def all_imports() -> list[Import]:
    """Read when a test asks for them, as every process collects this file."""
    imports = []
    for folder, prefix in ((ROOT / "shardopt", ""), (ROOT / "runtime", "runtime")):
        for path in sorted(folder.rglob("*.py")):
            package = prefix or (
                path.relative_to(folder).parts[0] if path.parent != folder else "shardopt"
            )
            tree = ast.parse(path.read_text(), str(path))
            file = str(path.relative_to(ROOT))
            imports += [
                Import(package, file, line, module, top) for line, module, top in imports_of(tree)
            ]
    return imports


def test_packages_import_only_what_they_may() -> None:
    wrong = []
    for each in all_imports():
        parts = each.module.split(".")
        if parts[0] != "shardopt" or each.package == "shardopt" or len(parts) < 3:
            continue
        if parts[1] != each.package and parts[1] not in ALLOWED[each.package]:
            wrong.append(str(each))
    assert wrong == []


def module_graph() -> dict[str, set[str]]:
    """Who imports whom, among modules of ours. Imports inside of functions count as well: they make
    a circle run, but whoever reads it still goes round."""
    graph: dict[str, set[str]] = {i.module_name: set() for i in all_imports()}
    for each in all_imports():
        target = each.module if each.module in graph else each.module.rpartition(".")[0]
        if target in graph:
            graph[each.module_name].add(target)
    return graph


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    TopologicalSorter(module_graph()).prepare()  # raises CycleError, which names the modules


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    """Nor does the table allow it: each package stands on those that it may import."""
    TopologicalSorter(ALLOWED).prepare()


@pytest.mark.parametrize("package", ["solve", "frontend"])
def test_rooms_do_not_import_each_other_in_a_circle(package: str) -> None:
    """The folders inside of a package hold to the same rule as the packages."""
    rooms: dict[str, set[str]] = {}
    for module, imported in module_graph().items():
        room = module.rpartition(".")[0]
        if room.startswith(f"shardopt.{package}"):
            others = {
                name.rpartition(".")[0]
                for name in imported
                if name.startswith(f"shardopt.{package}.")
            }
            rooms.setdefault(room, set()).update(others - {room})
    TopologicalSorter(rooms).prepare()


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_from_those_before_it(package: str) -> None:
    folder, prefix = ROOT / "shardopt" / package, f"shardopt.{package.replace('/', '.')}."
    assert {path.name for path in folder.glob("*.py")} == {"__init__.py"}
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(ROOMS[package])
    order = {room: number for number, room in enumerate(ROOMS[package])}
    wrong = []
    for module, imported in module_graph().items():
        if not module.startswith(prefix):
            continue
        room = module.removeprefix(prefix).split(".")[0]
        for name in imported:
            other = name.removeprefix(prefix).split(".")[0]
            if name.startswith(prefix) and order[other] > order[room]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_what_stands_around_the_package_imports_modules_that_exist() -> None:
    """Tests, benchmarks, examples and scripts too: a moved module is found before they are run, and
    also where an import runs late."""
    modules = {i.module_name for i in all_imports()}
    wrong = []
    for folder in ("tests", "benchmarks", "examples", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, name, _ in imports_of(ast.parse(path.read_text(), str(path))):
                known = {name, name.rpartition(".")[0]} & modules
                if name.startswith("shardopt.") and name.count(".") > 1 and not known:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_the_table_names_every_package() -> None:
    folders = {path.parent.name for path in (ROOT / "shardopt").glob("*/__init__.py")}
    assert folders - set(ALLOWED) == set() and set(ALLOWED) - folders - {"runtime"} == set()


def test_every_room_says_what_is_in_it() -> None:
    rooms = [
        path for folder in ("shardopt", "runtime") for path in (ROOT / folder).rglob("__init__.py")
    ]
    assert [str(path) for path in rooms if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_planning_is_pure() -> None:
    wrong = [
        str(i)
        for i in all_imports()
        if i.package in PURE and i.module.split(".")[0] in IMPURE_MODULES
    ]
    assert wrong == []


def test_pipeline_knows_passes_only_through_the_registry() -> None:
    infrastructure = {f"shardopt.passes.{name}" for name in registry.INFRASTRUCTURE}
    wrong = [
        str(i)
        for i in all_imports()
        if i.package in ("pipeline", "tools", "frontend")
        and i.module.startswith("shardopt.passes.")
        and not any(i.module == name or i.module.startswith(f"{name}.") for name in infrastructure)
    ]
    assert wrong == []


def test_heavy_modules_are_imported_late() -> None:
    wrong = []
    for each in all_imports():
        top = each.module.split(".")[0]
        if each.at_top and top in HEAVY and each.package not in HEAVY[top]:
            wrong.append(str(each))
    assert wrong == []


def _passes_on_disk() -> Iterator[tuple[str, str]]:
    """Module and name of every class of `shardopt.passes` that is a pass by its bases."""
    for path in sorted((ROOT / "shardopt" / "passes").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            bases = node.bases if isinstance(node, ast.ClassDef) else ()
            if any(isinstance(base, ast.Name) and base.id == "Pass" for base in bases):
                module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                yield module, node.name


def test_every_pass_file_is_registered_under_its_name() -> None:
    """<verb>_<object>.py, in a folder, holds <VerbObject>, registered as shardopt-<verb>-<object>,
    and nothing else is registered."""
    flat = {path.stem for path in (ROOT / "shardopt" / "passes").glob("*.py")} - {"__init__"}
    assert flat == set(registry.INFRASTRUCTURE)
    registered = [tuple(target.split(":")) for target in registry.PASSES.values()]
    assert sorted(_passes_on_disk()) == sorted(registered)
    for name, (module, class_name) in zip(registry.PASSES, registered, strict=True):
        cls = registry.pass_class(name)
        words = name.removeprefix(registry.PREFIX)
        assert issubclass(cls, Pass) and cls.name == name
        assert class_name.lower() == words.replace("-", "")
        assert module.endswith(f".{words.replace('-', '_')}")
        assert cls.summary and "\n" not in cls.summary
        assert str(cls()) == name and cls.parse() == cls()


HELP = (
    "from shardopt.tools.opt import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
)
RUN = (
    "from shardopt.tools.opt import main\nassert main(['-o', '/dev/null', '--cse', "
    "'/dev/null']) "
    "== 0"
)
ALL_PASSES = (
    "from shardopt.passes.registry import PASSES, pass_class\n[pass_class(name) for name in PASSES]"
)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import shardopt", ("jax", "jaxlib", "ortools", "ray", "numpy", "numba")),
        (HELP, ("jax", "jaxlib", "ortools", "ray", "numpy")),
        (RUN, ("jax", "ortools", "ray")),
        (ALL_PASSES, ("jax", "ortools", "ray", "numba")),
    ],
    ids=["import", "help", "run", "all-passes"],
)
def test_what_loads(code: str, absent: tuple[str, ...]) -> None:
    check = (
        f"\nimport sys\nloaded = [m for m in {absent!r} if m in sys.modules]\nassert not "
        "loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code + check], check=True, stdout=subprocess.DEVNULL)
