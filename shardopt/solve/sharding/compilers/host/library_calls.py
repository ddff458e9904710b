"""What one call of XLA's library of kernels for hosts (YNNPACK) computes.

    %m = reduce max %s          // reads %s, which is in memory
    %d = subtract %s, broadcast %m
    %e = exponential %d         // the only value that is written

A call begins with a sum, maximum or minimum over floats, the last of the program first, and takes
in what it can compute of the neighbours: what makes an operand that nobody else reads, and the only
reader of its result (xla/backends/cpu/transforms/library_rewriter.cc, ynn_matcher.h,
xla/backends/cpu/ynn_support.cc). A matrix product is a call, alone or in one of these. What a call
reads lies in memory: nothing is fused into it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shardopt.solve.sharding.compilers.host.instructions import Program

PRODUCT = "dot_general"
_FLOATS = frozenset({"bf16", "f32", "f64"})
_NUMBERS = _FLOATS | {"i8", "ui8"}
_UNARY = frozenset({
    "abs", "ceil", "convert", "cosine", "exponential", "exponential_minus_one", "floor", "log",
    "log_plus_one", "logistic", "negate", "round_nearest_even", "rsqrt", "sign", "sine", "sqrt",
    "tan", "tanh",
})  # fmt: skip
_BINARY = frozenset({"add", "divide", "maximum", "minimum", "multiply", "power", "subtract"})
_REDUCERS = frozenset({"add", "maximum", "minimum"})
# `kMinElements` of ynn_support.cc: below, the library is not worth the call.
_LEAST_ELEMENTS = 4096


@dataclass
class LibraryCall:
    """`root` is the instruction whose result is written; all are among `members`."""

    root: int
    members: set[int]


def find_library_calls(program: Program) -> dict[int, LibraryCall]:
    """For each instruction that is part of one, the call."""
    calls: dict[int, LibraryCall] = {}
    for index in range(len(program.instructions) - 1, -1, -1):
        name = program.instructions[index].name
        if index in calls or name not in ("reduce", PRODUCT) or not is_supported(program, index):
            continue
        call = LibraryCall(index, {index})
        if name == "reduce":
            while _grow(program, call, calls):
                pass
        calls.update(dict.fromkeys(call.members, call))
    return calls


def is_supported(program: Program, index: int) -> bool:
    """Whether the library computes an instruction."""
    instruction = program.instructions[index]
    if len(instruction.results) != 1:
        return False
    dtype = program.dtype(instruction.results[0])
    if instruction.name == PRODUCT:
        return dtype in _FLOATS
    if instruction.name in ("broadcast_in_dim", "reshape"):
        return dtype in _NUMBERS
    touched = (*instruction.operands, *instruction.results)
    if all(program.elements(buffer) < _LEAST_ELEMENTS for buffer in touched):
        return False
    if instruction.name == "reduce":
        return instruction.reducer in _REDUCERS and dtype in ("f32", "f64")
    names = {1: _UNARY, 2: _BINARY}.get(len(instruction.operands), frozenset())
    return instruction.name in names and all(
        program.dtype(buffer) in _NUMBERS for buffer in touched
    )


def _grow(program: Program, call: LibraryCall, calls: dict[int, LibraryCall]) -> bool:
    """Take in what is around a call, breadth first; whether there was anything."""
    before = len(call.members)
    scope = program.instructions[call.root].scope
    frontier, seen = deque[tuple[int, bool]](), set(call.members)

    def look(index: int, operands: list[int], *, down: bool, up: bool) -> None:
        makers = (program.makers.get(buffer, -1) for buffer in operands) if up else ()
        for maker in makers:
            if maker >= 0 and maker not in seen | calls.keys() and _only_read_by(maker, index):
                frontier.append((maker, False))
                seen.add(maker)
        reader = _only_reader(index) if down else None
        if reader is not None and reader not in seen and reader not in calls:
            frontier.append((reader, True))
            seen.add(reader)

    def _only_read_by(maker: int, index: int) -> bool:
        results = program.instructions[maker].results
        return program.kept.isdisjoint(results) and all(
            reader in call.members or reader == index
            for buffer in results
            for reader in program.readers[buffer]
        )

    def _only_reader(index: int) -> int | None:
        [buffer] = program.instructions[index].results
        outside = [each for each in program.readers[buffer] if each not in call.members]
        return outside[0] if len(outside) == 1 and buffer not in program.kept else None

    operands = [t for index in sorted(call.members) for t in program.instructions[index].operands]
    look(call.root, operands, down=True, up=True)
    while frontier:
        index, is_reader = frontier.popleft()
        if program.instructions[index].scope != scope or not is_supported(program, index):
            continue
        look(index, list(program.instructions[index].operands), down=is_reader, up=not is_reader)
        call.members.add(index)
        if is_reader:
            call.root = index
    return len(call.members) > before
