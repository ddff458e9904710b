"""The kernels of a program: library calls, loops over the elements of what they write, and
operations that are kernels of their own.

A loop computes cheap operations on the way to its result, as often as it is needed
(xla/service/instruction_fusion.cc, xla/service/cpu/cpu_instruction_fusion.cc). Kernels are made
from the end of the program, and each takes in all that it can before the next is made. What it may
take in:

* what itself is a loop, and belongs to no library call (a value that a call, a product, a barrier
  or the caller reads is written, and may be computed again by others),
* an expensive operation (`tanh`, `divide`) only where nobody else needs its result, and no element
  of it more than once,
* an operation on two or more large operands only where all of its readers can take it in: else it
  is cheaper to read its result than its operands.

A change of shape alone is no kernel: its result is the operand's buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from shardopt.solve.sharding.compilers.host.instructions import Instruction, Program
from shardopt.solve.sharding.compilers.host.library_calls import LibraryCall, find_library_calls
from shardopt.solve.sharding.kernels.fusion import CHEAP

_LOOPS = CHEAP | {
    "bitcast_convert", "dynamic_update_slice", "gather", "popcnt", "reduce", "reduce_precision",
}  # fmt: skip
_MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "iota",
    "pad", "reduce", "reshape", "reverse", "slice", "transpose",
})  # fmt: skip
_EXPENSIVE = frozenset({
    "atan2", "cbrt", "divide", "exponential", "exponential_minus_one", "gather", "log",
    "log_plus_one", "logistic", "power", "reduce", "remainder", "rsqrt", "sqrt", "tan", "tanh",
})  # fmt: skip
# More operands make a tree of branches of a concatenation (kMaxConcatenateArguments).
_MOST_CONCATENATED = 8
# How far back it is looked whether a value goes into another, in instructions.
_HORIZON = 4096
_DEEPEST_PATH = 200


@dataclass(frozen=True)
class Kernel:
    """`members` are instructions, the last of which writes `results`. `overwritten` are the buffers
    of `reads` whose elements are read where those of the result are written."""

    members: tuple[int, ...]
    reads: tuple[int, ...]
    results: tuple[int, ...]
    overwritten: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Kernels:
    """`kernels` in an order in which they can run. `same[b]` is the buffer that buffer b is another
    name for."""

    kernels: tuple[Kernel, ...]
    same: dict[int, int]

    def buffer(self, buffer: int) -> int:
        while buffer in self.same:
            buffer = self.same[buffer]
        return buffer


def find_loops(program: Program) -> Kernels:
    return _Fuser(program).run()


@dataclass
class _Loop:
    """A kernel while it grows: for each buffer that it reads whether elements are read more than
    once, and whether they are read where those of the result are written; and which of its members
    read a buffer."""

    root: int
    members: list[int]
    reads: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program, self.instructions = program, program.instructions
        self.calls = find_library_calls(program)
        self.written = _WrittenOnce(program, self.calls).run()
        # Kernels and instructions that still read a buffer.
        self.readers: list[set[object]] = [
            {self._kernel_of(each) for each in readers} for readers in program.readers
        ]

    def _kernel_of(self, index: int) -> object:
        return ("call", self.calls[index].root) if index in self.calls else index

    def run(self) -> Kernels:
        kernels: list[Kernel] = []
        same: dict[int, int] = {}
        for index in range(len(self.instructions) - 1, -1, -1):
            instruction = self.instructions[index]
            if index in self.calls:
                if self.calls[index].root == index:
                    kernels.append(self._call(self.calls[index]))
            elif not is_loop(instruction):
                reads = tuple(dict.fromkeys(instruction.operands))
                updated = frozenset(reads[:1] if instruction.name == "scatter" else ())
                kernels.append(Kernel((index,), reads, instruction.results, updated))
            elif self.readers[instruction.results[0]] or self._is_kept(instruction):
                loop = self._loop(index)
                if len(loop.members) == 1 and self._is_another_name(instruction):
                    same[instruction.results[0]] = instruction.operands[0]
                    continue
                places = (b for b, (_, in_place) in loop.reads.items() if in_place)
                kernels.append(
                    Kernel(
                        tuple(sorted(loop.members)),
                        tuple(loop.reads),
                        instruction.results,
                        frozenset(places),
                    )
                )
        return _renamed(Kernels(tuple(reversed(kernels)), same))

    def _is_kept(self, instruction: Instruction) -> bool:
        return not self.program.kept.isdisjoint(instruction.results)

    def _is_another_name(self, instruction: Instruction) -> bool:
        """What leaves a fragment, and is another name of what it is given or of something else that
        leaves it, is a copy of that."""
        program = self.program
        if not program.changes_only_shape(instruction):
            return False
        source = instruction.operands[0]
        return not program.leaves(instruction.results[0]) or (
            program.is_made_by(source, instruction.fragment) and not program.leaves(source)
        )

    def _call(self, call: LibraryCall) -> Kernel:
        members = sorted(call.members)
        made = {b for index in members for b in self.instructions[index].results}
        reads = dict.fromkeys(
            b for index in members for b in self.instructions[index].operands if b not in made
        )
        return Kernel(tuple(members), tuple(reads), self.instructions[call.root].results)

    def _loop(self, root: int) -> _Loop:
        loop, refused = _Loop(root, [root]), set[int]()
        # The last of the program first: then each is taken in when all of its readers are.
        left = [(-maker, -buffer) for maker, buffer in self._read(loop, root, False, True)]
        heapify(left)
        while left:
            maker, buffer = (-each for each in heappop(left))
            if buffer in refused or buffer not in loop.reads:
                continue
            if not self._takes_in(loop, maker, buffer):
                refused.add(buffer)
                continue
            for before, operand in self._take_in(loop, maker, buffer):
                refused.discard(operand)
                heappush(left, (-before, -operand))
        return loop

    def _takes_in(self, loop: _Loop, maker: int, buffer: int) -> bool:
        instruction = self.instructions[maker]
        if maker in self.written or maker in self.calls or not is_loop(instruction):
            return False
        if instruction.scope != self.instructions[loop.root].scope or is_long(instruction):
            return False
        for index in loop.readers[buffer]:
            member = self.instructions[index]
            if is_long(member) or buffer in member.waits:
                return False
        others = self.readers[buffer] - {loop.root} or buffer in self.program.kept
        return not (is_expensive(self.program, instruction) and (others or loop.reads[buffer][0]))

    def _take_in(self, loop: _Loop, maker: int, buffer: int) -> list[tuple[int, int]]:
        """What `_read` gives of the maker, which is a member from now on."""
        again, in_place = loop.reads.pop(buffer)
        loop.members.append(maker)
        made = self._read(loop, maker, again, in_place)
        self.readers[buffer].discard(loop.root)
        for operand in self.instructions[maker].operands:
            self.readers[operand].add(loop.root)
            if not self.readers[buffer] and buffer not in self.program.kept:
                self.readers[operand].discard(maker)
        return made

    def _read(self, loop: _Loop, index: int, again: bool, in_place: bool) -> list[tuple[int, int]]:
        """Notes what a member reads; gives (maker, buffer) of the operands that are made here."""
        instruction = self.instructions[index]
        for position, operand in enumerate(instruction.operands):
            seen_again, seen_in_place = loop.reads.get(operand, (False, True))
            in_its_place = (
                position == 0
                if instruction.name == "dynamic_update_slice"
                else instruction.name not in _MOVES
                and self.program.shapes[operand] == self.program.shapes[instruction.results[0]]
            )
            loop.reads[operand] = (
                seen_again or again or reads_again(self.program, instruction, operand),
                seen_in_place and in_place and in_its_place,
            )
            loop.readers.setdefault(operand, []).append(index)
        makers = self.program.makers
        return [(makers[b], b) for b in dict.fromkeys(instruction.operands) if b in makers]


class _WrittenOnce:
    """Instructions that no kernel takes in, as not all of their readers can."""

    def __init__(self, program: Program, calls: dict[int, LibraryCall]) -> None:
        self.program, self.calls = program, calls
        self.written: set[int] = set()
        self.ancestors = _ancestors(program)
        self.known: dict[tuple[int, int], bool] = {}

    def run(self) -> set[int]:
        program = self.program
        for index in range(len(program.instructions) - 1, -1, -1):
            instruction = program.instructions[index]
            if not is_loop(instruction) or not self._reads_much(instruction):
                continue
            readers = program.readers[instruction.results[0]]
            if instruction.results[0] in program.kept or not all(
                self._goes_into(index, reader) and self._on_all_paths(index, reader, 0)
                for reader in readers
            ):
                self.written.add(index)
        return self.written

    def _reads_much(self, instruction: Instruction) -> bool:
        """Two operands or more that are as large as the result, and none that is made on the
        way."""
        program, result = self.program, instruction.results[0]
        rank = sum(size != 1 for size in program.shapes[result])
        large = [
            operand
            for operand in instruction.operands
            if sum(size != 1 for size in program.shapes[operand]) >= rank
            and program.elements(operand) > 1
            and self._name_of_maker(operand) not in ("broadcast_in_dim", "iota")
        ]
        elements = sum(program.elements(each) for each in set(instruction.operands))
        return len(large) > 1 and elements > program.elements(result)

    def _name_of_maker(self, buffer: int) -> str:
        maker = self.program.makers.get(buffer, -1)
        return self.program.instructions[maker].name if maker >= 0 else ""

    def _goes_into(self, maker: int, reader: int) -> bool:
        first, second = self.program.instructions[maker], self.program.instructions[reader]
        if {maker, reader} & self.calls.keys() or not (is_loop(first) and is_loop(second)):
            return False
        [buffer] = first.results
        if first.scope != second.scope or buffer in second.waits:
            return False
        if is_long(first) or is_long(second):
            return False
        return not (
            is_expensive(self.program, first)
            and (self.program.users(buffer) > 1 or reads_again(self.program, second, buffer))
        )

    def _on_all_paths(self, maker: int, reader: int, depth: int) -> bool:
        """Whether all between the two can be one loop."""
        if maker == reader:
            return True
        key = (maker, reader)
        if key not in self.known:
            self.known[key] = depth < _DEEPEST_PATH and all(
                between not in self.written
                and self._goes_into(between, reader)
                and self._on_all_paths(maker, between, depth + 1)
                for between in self._makers_behind(maker, reader)
            )
        return self.known[key]

    def _makers_behind(self, maker: int, reader: int) -> Iterable[int]:
        for operand in self.program.instructions[reader].operands:
            between = self.program.makers.get(operand, -1)
            distance = between - maker
            if distance == 0 or (distance > 0 and self.ancestors[between] >> distance & 1):
                yield between


def _ancestors(program: Program) -> list[int]:
    """Bit d of number i: instruction i - d goes into instruction i."""
    horizon = (1 << _HORIZON) - 1
    ancestors: list[int] = []
    for index, instruction in enumerate(program.instructions):
        bits = 0
        for operand in instruction.operands:
            maker = program.makers.get(operand, -1)
            if 0 <= maker < index and index - maker < _HORIZON:
                bits |= (ancestors[maker] | 1) << (index - maker) & horizon
        ancestors.append(bits)
    return ancestors


def is_loop(instruction: Instruction) -> bool:
    return instruction.name in _LOOPS and len(instruction.results) == 1


def is_long(instruction: Instruction) -> bool:
    """A concatenation of too many operands to be computed on the way."""
    return instruction.name == "concatenate" and len(instruction.operands) > _MOST_CONCATENATED


def is_expensive(program: Program, instruction: Instruction) -> bool:
    dtype = program.dtype(instruction.results[0])
    if instruction.name in ("divide", "remainder"):
        return not dtype.startswith(("i", "ui"))
    return instruction.name in _EXPENSIVE or (instruction.name == "convert" and dtype == "bf16")


def reads_again(program: Program, instruction: Instruction, operand: int) -> bool:
    """Whether an operation reads elements of an operand more than once."""
    if instruction.name == "broadcast_in_dim":
        return program.elements(instruction.results[0]) > program.elements(operand)
    return instruction.name == "gather"


def _renamed(found: Kernels) -> Kernels:
    """The same with one name for each buffer."""
    kernels = tuple(
        Kernel(
            kernel.members,
            tuple(dict.fromkeys(map(found.buffer, kernel.reads))),
            kernel.results,
            # Behind a change of shape, elements no longer lie where those of the result do.
            frozenset(b for b in kernel.overwritten if b not in found.same),
        )
        for kernel in found.kernels
    )
    return Kernels(kernels, found.same)
