"""The verifier against an interpreter: on random programs, and on all that one changed instruction makes of them."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import (
    KEEPING,
    KINDS,
    Impossible,
    Interpreter,
    exported_programs,
    mutations,
    program_of_all_kinds,
)

from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import Instruction
from shardopt.runtime.program.json_form import program_from_json, program_to_json

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(exported_programs())
def test_random_programs_are_good_and_run(exported: object) -> None:
    program = build_program(exported)  # type: ignore[arg-type]
    assert check_program(program) == ()
    Interpreter(program).run()
    assert program_from_json(program_to_json(program)) == program


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_the_check_runs(kind: str) -> None:
    """A mutant has faults, or every worker can carry it out; if its instructions are those of the original, to the same
    end. The verifier refuses nothing that differs from the original in no more than a name."""
    refused: list[bool] = []

    @QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        program = build_program(data.draw(st.one_of(st.just(program_of_all_kinds()), exported_programs())))
        mutant = data.draw(mutations(program, kind))
        faults = check_program(mutant)
        if mutant == program:
            assert faults == ()
            return
        refused.append(bool(faults))
        try:
            terms = Interpreter(mutant).run() if not any("does not exist" in fault for fault in faults) else None
        except Impossible as reason:
            assert faults, f"{kind}: {reason}"
            return
        if not faults and kind in KEEPING:
            assert terms == Interpreter(program).run()
        if faults and terms is not None:  # the verifier is stricter than one order of execution needs
            assert any("deadlock" in fault or "nothing to complete" in fault or "tag" in fault for fault in faults), (
                faults
            )

    check()
    assert any(refused)


def test_the_small_program_has_every_kind_of_instruction() -> None:
    program = build_program(program_of_all_kinds())
    found = {type(each) for part in program.meshes for each in part.instructions}
    assert found == set(get_args(Instruction))
