"""What is planned to travel together does so: groups of transfers in the IR against the messages of
the program."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.extract.transfer_groups import transfer_groups
from shardopt.forms.exported_form import read_exported
from shardopt.ir.context import make_context
from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.instructions import Send

EXAMPLE = (Path(__file__).parents[2] / "e2e" / "exported_example.mlir").read_text()
TOGETHER = Path(__file__).parents[2] / "lit" / "passes" / "insert-transfers-together.mlir"


def test_groups_are_the_messages_of_the_program() -> None:
    with make_context():
        module = ir.Module.parse(EXAMPLE)
        program = read_program(module)
        sizes: Counter[int] = Counter()
        for ops in transfer_groups(program):
            inside = ops[0].parent == program.body
            sizes[len(ops)] += program.num_microbatches if inside else 1
        built = build_program(read_exported(module))
    sends = [each for part in built.meshes for each in part.instructions if isinstance(each, Send)]
    assert sends and Counter(len(send.buffers) for send in sends) == sizes


def test_what_is_needed_later_travels_alone() -> None:
    with make_context():
        program = read_program(ir.Module.parse(TOGETHER.read_text()))
        assert [len(ops) for ops in transfer_groups(program)] == [2, 1]
