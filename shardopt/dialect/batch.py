"""Which arguments of `@main` hold the batch, for the passes behind the one that knows.

    func.func public @main(%w: …, %x: tensor<8x4xf32> {shardopt.batch = 0 : i64})

`shardopt.no_batch` on `@main` says in words why there is none, `shardopt.step_loop` where the
program takes several steps in a loop of its own."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.donation import argument_attributes

BATCH = "shardopt.batch"
NO_BATCH = "shardopt.no_batch"
STEP_LOOP = "shardopt.step_loop"


def write_batch(main: ir.Operation, dims: Mapping[int, int]) -> None:
    """Argument -> the dimension with the batch, of all arguments that have one."""
    arguments = []
    for number, attributes in enumerate(argument_attributes(main)):
        kept = {name: value for name, value in entries(attributes).items() if name != BATCH}
        if number in dims:
            kept[BATCH] = i64(dims[number])
        arguments.append(ir.DictAttr.get(kept))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)


def read_batch(main: ir.Operation) -> dict[int, int]:
    return {
        number: ir.IntegerAttr(attributes[BATCH]).value
        for number, attributes in enumerate(argument_attributes(main))
        if BATCH in attributes
    }


def write_no_batch(main: ir.Operation, reason: str) -> None:
    main.attributes[NO_BATCH] = ir.StringAttr.get(reason)


def read_no_batch(main: ir.Operation) -> str:
    """Why no batch is known, "" where that is not known either."""
    return ir.StringAttr(main.attributes[NO_BATCH]).value if NO_BATCH in main.attributes else ""


def write_step_loop(main: ir.Operation, hint: str) -> None:
    main.attributes[STEP_LOOP] = ir.StringAttr.get(hint)


def has_step_loop(main: ir.Operation) -> bool:
    """Whether a loop of the step is known whose iterations are steps themselves."""
    return STEP_LOOP in main.attributes


def with_step_loop(main: ir.Operation, message: str) -> str:
    """An error of a step that cannot be cut, with what is known of its loop."""
    if not has_step_loop(main):
        return message
    return f"{message}; {ir.StringAttr(main.attributes[STEP_LOOP]).value}"


def erase_step_loop(main: ir.Operation) -> None:
    """Behind the passes that cut the step: the hint names files of the user."""
    if STEP_LOOP in main.attributes:
        del main.attributes[STEP_LOOP]
