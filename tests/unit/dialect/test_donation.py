from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import argument_attributes, donation_faults, read_donation
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions


def parse(arguments: str, results: str) -> ir.Module:
    """A declaration of `@main`."""
    return ir.Module.parse(f"func.func private @main({arguments}) -> ({results})", make_context())


ALIAS = "tf.aliasing_output"
DONOR = "jax.buffer_donor = true"
SMALL = "tensor<2xf32>"
BIG = "tensor<4xf32>"


@pytest.mark.parametrize(
    ("arguments", "results", "expected"),
    [
        (f"{SMALL}, {SMALL}", SMALL, {}),
        (f"{SMALL} {{{ALIAS} = 1 : i32}}", f"{SMALL}, {SMALL}", {0: 1}),
        # A donor takes the first result of its type that is still free.
        (f"{BIG} {{{DONOR}}}, {SMALL} {{{DONOR}}}", f"{SMALL}, {BIG}", {0: 1, 1: 0}),
        (f"{SMALL} {{{DONOR}}}, {SMALL} {{{DONOR}}}", f"{SMALL}, {SMALL}", {0: 0, 1: 1}),
        # Named results are taken first, wherever the argument stands.
        (f"{SMALL} {{{DONOR}}}, {SMALL} {{{ALIAS} = 0 : i32}}", f"{SMALL}, {SMALL}", {0: 1, 1: 0}),
        # A buffer without a result to take its place is offered in vain.
        (f"{BIG} {{{DONOR}}}", SMALL, {}),
        (f"{SMALL} {{{DONOR}}}, {SMALL} {{{DONOR}}}", SMALL, {0: 0}),
        (f"{SMALL} {{jax.buffer_donor = false}}, {SMALL} {{{DONOR}}}", SMALL, {1: 0}),
    ],
)
def test_read_donation(arguments: str, results: str, expected: dict[int, int]) -> None:
    module = parse(arguments, results)
    with module.context:
        assert read_donation(next(functions(module))) == expected


def test_argument_attributes_has_one_dictionary_an_argument() -> None:
    attributed, plain = parse(f"{SMALL}, {SMALL} {{{ALIAS} = 0 : i32}}", SMALL), parse(SMALL, SMALL)
    with attributed.context:
        dictionaries = argument_attributes(next(functions(attributed)))
        assert [list(entries(attributes)) for attributes in dictionaries] == [[], [ALIAS]]
    with plain.context:
        assert [len(attributes) for attributes in argument_attributes(next(functions(plain)))] == [
            0
        ]


def test_faults_of_donation_leave_malformed_types_to_others() -> None:
    plain = '!mpmd.mesh_tensor<"m", tensor<4xf32>'
    module = parse(f'{plain}, sharding=<@m, [{{"x":(1)2}}]>> {{{ALIAS} = 0 : i32}}', f"{plain}>")
    with module.context:
        assert list(donation_faults(next(functions(module)))) == []
