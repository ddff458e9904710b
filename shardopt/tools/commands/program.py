"""`shardopt program`: the instruction lists of a plan or of an exported module, as the workers run
them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError
from shardopt.tools.common import console
from shardopt.tools.run.inputs import add_program_flags, read_program

if TYPE_CHECKING:
    from shardopt.runtime.program.instructions import Program


def add_program(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read and check a plan directory or an exported module, and print the "
        "program that it runs as."
    )
    parser.add_argument(
        "program", type=Path, metavar="PLAN", help="plan directory, or file of a module"
    )
    add_program_flags(parser)
    parser.add_argument("--mesh", metavar="NAME", help="only the list of this mesh")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--json", action="store_true", help="as JSON, with functions named by their hash"
    )
    what.add_argument(
        "--memory", action="store_true", help="what a device of each mesh holds at most, and where"
    )
    parser.set_defaults(run=_program)


def _program(args: argparse.Namespace) -> None:
    from shardopt.runtime.program.json_form import only_mesh, readable_json
    from shardopt.runtime.program.text import format_program

    program, _ = read_program(args, args.program)
    if args.mesh is not None:
        known = [part.mesh.name for part in program.meshes]
        if args.mesh not in known:
            raise UserError(
                f"mesh '{args.mesh}' does not exist: expected one of {', '.join(known)}"
            )
        program = only_mesh(program, args.mesh)
    if args.memory:
        return _memory(program)
    print(
        readable_json(program) if args.json else format_program(program),
        end="\n" if args.json else "",
    )


def _memory(program: Program) -> None:
    from rich.table import Table

    from shardopt.runtime.program.memory import mesh_memory
    from shardopt.runtime.program.text import brief_instruction

    table = Table("mesh", title="bytes of a device, without temporaries of functions")
    for column in ("at the start", "peak"):
        table.add_column(column, justify="right")
    table.add_column("at the peak")
    for part in program.meshes:
        memory = mesh_memory(part)
        at = memory.peak_at
        place = "start" if at < 0 else f"{at}: {brief_instruction(part.instructions[at])}"
        table.add_row(part.mesh.name, f"{memory.start}", f"{memory.peak}", place)
    console().print(table)
