"""The verifier against an interpreter: on random programs, and on all that one changed instruction
makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.check_hosts import find_host_faults
from shardopt.runtime.program.host_routes import Round, rounds_of
from shardopt.runtime.program.hosts import Host, hosts_of
from shardopt.runtime.program.instructions import Instruction, Route
from shardopt.runtime.program.json_form import program_from_json, program_to_json
from tests.draws import draws
from tests.unit.runtime.random_programs import (
    KEEPING,
    KINDS,
    Impossible,
    Interpreter,
    exported_programs,
    mutations,
    program_of_all_kinds,
)

QUICK = settings(
    max_examples=draws(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@QUICK
@given(exported_programs())
def test_random_programs_are_good_and_run(exported: object) -> None:
    program = build_program(exported)  # type: ignore[arg-type]
    assert check_program(program) == ()
    for devices_per_host in (1, 2, 3):
        assert list(find_host_faults(program, hosts_of(program, devices_per_host))) == []
    Interpreter(program).run()
    assert program_from_json(program_to_json(program)) == program


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_the_check_runs(kind: str) -> None:
    """A mutant has faults, or every worker can carry it out; if its instructions are those of the
    original, to the same end. The verifier refuses nothing that differs from the original in no
    more than a name."""
    refused: list[bool] = []

    @QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        program = build_program(
            data.draw(st.one_of(st.just(program_of_all_kinds()), exported_programs()))
        )
        mutant = data.draw(mutations(program, kind))
        faults = check_program(mutant)
        if mutant == program:
            assert faults == ()
            return
        refused.append(bool(faults))
        try:
            terms = (
                Interpreter(mutant).run()
                if not any("does not exist" in fault for fault in faults)
                else None
            )
        except Impossible as reason:
            assert faults, f"{kind}: {reason}"
            return
        if not faults and kind in KEEPING:
            assert terms == Interpreter(program).run()
        # The verifier is stricter than one order of execution needs.
        if faults and terms is not None:
            assert any(
                "deadlock" in fault or "nothing to complete" in fault or "tag" in fault
                for fault in faults
            ), faults

    check()
    assert any(refused)


def test_the_small_program_has_every_kind_of_instruction() -> None:
    program = build_program(program_of_all_kinds())
    kinds = {type(each) for part in program.meshes for each in part.instructions}
    assert kinds == set(get_args(Instruction))


def test_hosts_that_do_not_pair_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = build_program(program_of_all_kinds())
    hosts = hosts_of(program, 2)
    assert [len(of_mesh) for of_mesh in hosts.values()] == [1, 1, 2]
    doubled = {
        **hosts,
        "m2": (hosts["m2"][0], replace(hosts["m2"][1], shards=hosts["m2"][0].shards)),
    }
    assert list(find_host_faults(program, doubled)) == [
        "mesh m2: its hosts have the shards [0, 0, 1, 1], expected each of 4 once"
    ]

    def forgetful(route: Route, all_hosts: Sequence[Host], this: Host) -> tuple[Round, ...]:
        rounds = rounds_of(route, all_hosts, this)
        return tuple(replace(each, outgoing=()) for each in rounds) if this.number == 0 else rounds

    monkeypatch.setattr("shardopt.runtime.program.check_hosts.rounds_of", forgetful)
    faults = list(find_host_faults(program, hosts))
    assert any(
        "worker m2/1 takes other slices of host 0 than that gives" in fault for fault in faults
    ), faults
    assert any("of host 0 does not fit where it lands in shard" in fault for fault in faults), (
        faults
    )
    monkeypatch.setattr("shardopt.runtime.program.check_hosts.pieces_between", lambda *_: ())
    assert any("is sent []" in fault for fault in find_host_faults(program, hosts))
