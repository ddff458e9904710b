"""The part of a step that one stage runs, as a graph of its own: what the shard phase will plan on
the stage's mesh.

    layers [2, 4) of a step  ─▶  before · forward · backward · after,
                                 each with copies of the shared operations it reads

Tensors are numbered by first use, so that equal stages have equal graphs wherever they stand in the
model; `key` names the content, and is the same in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from shardopt.graph.offloading import is_worth_a_message
from shardopt.graph.op_graph import SHARED, Op, OpGraph, Tensor
from shardopt.graph.residency import HostMove, MicrobatchLoop, Residency, host_moves, travels
from shardopt.graph.structure import structure_of
from shardopt.hardware.cluster import UNFUSED, Fusing
from shardopt.solve.sharding.intra_op.graph_kernels import GraphKernels
from shardopt.solve.sharding.strategies.linear import Linear, find_linear
from shardopt.solve.stages.costs.fragments import Fragment, Kind, fragments, with_exports
from shardopt.solve.stages.costs.ordering import by_first_use, first_uses
from shardopt.solve.stages.step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class StagePart:
    """Layers [start, end) of a step on one mesh. Operations of fragment k have group k; `kinds[k]`
    says what it is.

    `source_ops[i]` is the operation of the step that operation i is (a copy of), `source_tensors`
    the same of tensors. `sent` are tensors that other stages read; `loop` is (first, behind the
    last) operation of the body, `arrivals[t]` the operation before which input t comes from another
    stage, `on_host` what lies in the memory of the hosts: inputs, and what the forward makes for
    the backward."""

    graph: OpGraph
    kinds: tuple[Kind, ...]
    source_ops: tuple[int, ...]
    source_tensors: tuple[int, ...]
    tied: tuple[tuple[int, int], ...]
    sent: frozenset[int]
    loop: tuple[int, int]
    arrivals: Mapping[int, int]
    literals: frozenset[int]
    fusing: Fusing = UNFUSED
    on_host: frozenset[int] = frozenset()

    def residency(self, in_flight: int = 1) -> Residency:
        loop = MicrobatchLoop(*self.loop, in_flight)
        return Residency(loop, self.arrivals, self.literals, self.on_host)

    @cached_property
    def moves(self) -> tuple[HostMove, ...]:
        """Every message of a fragment between devices and hosts."""
        return host_moves(self.graph.ops, self.on_host, {b: a for a, b in self.tied})

    @cached_property
    def moves_of(self) -> Mapping[int, int]:
        """How often in a step what lies on the host travels, what replaces it among that."""
        return travels(self.moves, {b: a for a, b in self.tied})

    @cached_property
    def waiting(self) -> frozenset[int]:
        """What of `on_host` is there once for every microbatch in flight."""
        return self.on_host.difference(self.graph.inputs)

    @cached_property
    def weights(self) -> frozenset[int]:
        """The inputs of which schedules may keep older versions
        (`shardopt.passes.stages.version_weights`): numbers that the loop reads, also through what
        stands before it, and that something made behind it replaces."""
        ops, (begin, stop) = self.graph.ops, self.loop
        read = {tensor for op in ops[begin:stop] for tensor in op.operands}
        for op in reversed(ops[:begin]):
            if not read.isdisjoint(op.results):
                read.update(op.operands)
        made_inside = {result for op in ops[begin:stop] for result in op.results}
        replaced = {a for a, b in self.tied if b not in made_inside}
        weights = replaced & read & set(self.graph.inputs) - self.arrivals.keys()
        return frozenset(t for t in weights if self.graph.tensors[t].is_float)

    @cached_property
    def linear(self) -> tuple[Linear, ...]:
        """For each operation which values may be unreduced: none that leaves the stage."""
        return find_linear(self.graph, self.tied, self.sent)

    @cached_property
    def kernels(self) -> GraphKernels:
        return GraphKernels(self.graph, self.fusing)

    @cached_property
    def free(self) -> frozenset[int]:
        """Tensors that each reader gets in the sharding that it wants."""
        cheap = self.kernels.cheap_to_clone
        return cheap.difference(tensor for pair in self.tied for tensor in pair)

    @cached_property
    def key(self) -> str:
        """The hash of all that costs depend on."""
        loose = (
            self.kinds,
            sorted(self.tied),
            sorted(self.sent),
            self.loop,
            sorted(self.arrivals.items()),
        )
        kernels = (
            *("merged kernels",) * self.fusing.merged,
            *("no rows",) * (self.fusing.merged and not self.fusing.rows),
            *("fused attention",) * self.fusing.attention,
            *("hosts",) * self.fusing.for_hosts,
            *(("on host", *sorted(self.on_host)),) * bool(self.on_host),
        )
        structure = structure_of(self.graph)
        digest = sha256(structure.digest)
        # The digest is blind to the order of operations and tensors, in which choices are listed.
        digest.update(
            repr(
                (structure.ops, structure.tensors, loose, sorted(self.literals), *kernels)
            ).encode()
        )
        return digest.hexdigest()


def cut_part(step: StepGraph, start: int, end: int, turn: int | None = None) -> StagePart:
    """The part of layers [start, end). Backward is what depends on layers from `turn` on, by
    default from `end`."""
    return _Cutter(step.cut_at(start, end), start, end, end if turn is None else turn).run()


_IN_LOOP = ("forward", "backward")


class _Cutter:
    def __init__(self, step: StepGraph, start: int, end: int, turn: int) -> None:
        self.step, self.start, self.end, self.turn = step, start, end, turn
        # (fragment, or None, and tensor of the step) -> tensor
        self.number: dict[tuple[int | None, int], int] = {}
        self.tensors: list[Tensor] = []
        self.source_tensors: list[int] = []
        self.ops: list[Op] = []
        self.source_ops: list[int] = []
        self.arrivals: dict[int, int] = {}
        self.loops: list[tuple[int, int]] = []

    def run(self) -> StagePart:
        planned = self._planned()
        spans = []
        for group, each in enumerate(planned):
            begin = len(self.ops)
            self._add(group, each)
            spans.append((begin, len(self.ops)))
        body = [span for span, each in zip(spans, planned, strict=True) if each.kind in _IN_LOOP]
        loop = (body[0][0], body[-1][1]) if body else (0, 0)
        return self._finish(tuple(each.kind for each in planned), loop)

    def _planned(self) -> list[Fragment]:
        """The fragments, of which those before the loop also make the shared values that the body
        is given."""
        parts = fragments(self.step, self.start, self.end, self.turn)
        body = [op for part in parts if part.kind in _IN_LOOP for op in part.ops]
        shared = self._shared_before_loop(self._with_copies(body, inside=True))
        uses = first_uses(self.step, body)
        # Equal layers have equal bodies already; only what stands outside follows the names of
        # parameters.
        return [
            part
            if part.kind in _IN_LOOP
            else replace(part, ops=by_first_use(self.step, part.ops, uses))
            for part in with_exports(self.step, parts, shared)
        ]

    def _shared_before_loop(self, ops: Iterable[int]) -> tuple[int, ...]:
        """What shared operations before the loop make for `ops` of the body."""
        step = self.step
        read = dict.fromkeys(tensor for op in ops for tensor in step.graph.ops[op].operands)
        return tuple(t for t in read if step.is_shared(t) and not step.in_body(step.producers[t]))

    def _with_copies(
        self, ops: Sequence[int], inside: bool, exports: Iterable[int] = ()
    ) -> list[int]:
        """`ops`, in their order, each behind the shared operations, inside or outside of the loop,
        that it needs; what a region needs stands before the region. At the end those for `exports`
        values."""
        rows, shared = self.step.graph.ops, self.step.shared
        collected: dict[int, None] = {}
        at = 0
        while at < len(ops):
            stop = at + 1
            while rows[ops[at]].block and stop < len(ops) and rows[ops[stop]].block:
                stop += 1
            run = ops[at:stop]
            for op in run:
                for tensor in rows[op].operands:
                    if tensor in shared:
                        self._copy(tensor, inside, collected)
            for op in run:
                collected[op] = None
            at = stop
        for tensor in exports:
            self._copy(tensor, inside, collected)
        return list(collected)

    def _copy(self, tensor: int, inside: bool, collected: dict[int, None]) -> None:
        """Add the shared operations behind a value to `collected`, makers first."""
        step, stack = self.step, [tensor]
        while stack:
            producer = step.producers[stack[-1]]
            if (
                producer in collected
                or not step.is_shared(stack[-1])
                or step.in_body(producer) != inside
            ):
                stack.pop()
                continue
            missing = [
                t
                for t in step.graph.ops[producer].operands
                if step.is_shared(t)
                and step.in_body(step.producers[t]) == inside
                and step.producers[t] not in collected
            ]
            if missing:
                stack += reversed(missing)
            else:
                collected[producer] = None
                stack.pop()

    def _add(self, group: int, planned: Fragment) -> None:
        step, begin = self.step, len(self.ops)
        inside = planned.kind in _IN_LOOP
        ops = self._with_copies(planned.ops, inside, planned.exports)
        made = {
            result
            for op in ops
            if step.op_layer[op] == SHARED
            for result in step.graph.ops[op].results
        }
        shared_by_all = set(planned.exports)

        def tensor(source: int) -> int:
            of_fragment = source in made and source not in shared_by_all
            return self._tensor(group if of_fragment else None, source, begin)

        place = {}
        for op in ops:
            place[op] = len(self.ops)
            each = step.graph.ops[op]
            operands = tuple(map(tensor, each.operands))
            results = tuple(
                self._made(group if r in made and r not in shared_by_all else None, r)
                for r in each.results
            )
            waits = self._waits(group, each) if each.waits else ()
            self.ops.append(
                each.at(
                    operands=operands,
                    results=results,
                    waits=waits,
                    group=group,
                    repeat=each.repeat,
                    block=each.block,
                    trips=each.trips,
                )
            )
            self.source_ops.append(op)
        for first, last in step.graph.loops:
            inner = [place[op] for op in range(first, last) if op in place]
            if inner:
                self.loops.append((min(inner), max(inner) + 1))

    def _tensor(self, group: int | None, source: int, begin: int) -> int:
        """The tensor that a reader in the fragment that begins at `begin` gets; one not made here
        before arrives."""
        key = (group, source)
        if key not in self.number:
            producer = self.step.producers[source]
            # An input that nobody owns is at hand on every stage; what another layer makes never
            # is.
            home = self.step.owner.get(source, self.start) if producer < 0 else SHARED
            number = self._made(group, source)
            if not self.start <= home < self.end:
                self.arrivals[number] = begin
        return self.number[key]

    def _waits(self, group: int, op: Op) -> tuple[int, ...]:
        """What the stage makes or is given anyway: a barrier asks for nothing of other stages."""
        numbers = (self.number.get((group, t), self.number.get((None, t))) for t in op.waits)
        return tuple(number for number in numbers if number is not None)

    def _made(self, group: int | None, source: int) -> int:
        number = self.number.setdefault((group, source), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(self.step.graph.tensors[source])
            self.source_tensors.append(source)
        return number

    def _finish(self, kinds: tuple[Kind, ...], loop: tuple[int, int]) -> StagePart:
        step = self.step
        defined = {result for op in self.ops for result in op.results}
        inputs = tuple(t for t in range(len(self.tensors)) if t not in defined)
        groups: tuple[int | None, ...] = (None, *range(len(kinds)))
        returned = (self.number.get((None, tensor)) for tensor in dict.fromkeys(step.graph.outputs))
        outputs = tuple(t for t in returned if t is not None and t in defined)
        # A shared value has a copy for each fragment: a pair is tied where both ends are copies of
        # one fragment, or neither is a copy.
        here = {source for _, source in self.number}
        tied = tuple(
            (self.number[group, a], self.number[group, b])
            for a, b in ((a, b) for a, b in step.tied if a in here and b in here)
            for group in groups
            if (group, a) in self.number and (group, b) in self.number
        )
        carried, literals, resting = (
            frozenset(number for (_, source), number in self.number.items() if source in some)
            for some in (step.graph.carried, step.literals, step.on_host)
        )
        graph = OpGraph(
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            inputs=inputs,
            outputs=outputs,
            loops=tuple(self.loops),
            carried=carried,
        )
        sent = self._sent(defined)
        kept = {*sent, *outputs, *literals, *(tensor for pair in tied for tensor in pair)}
        return StagePart(
            graph=graph,
            kinds=kinds,
            source_ops=tuple(self.source_ops),
            source_tensors=tuple(self.source_tensors),
            tied=tied,
            sent=sent,
            loop=loop,
            arrivals={t: at for t, at in self.arrivals.items() if t not in defined},
            literals=literals,
            fusing=step.fusing,
            on_host=resting | self._waiting(kinds, kept),
        )

    def _waiting(self, kinds: Sequence[Kind], kept: Set[int]) -> Set[int]:
        """What a forward makes for its backward and may rest on the hosts between them: nothing of
        what is `kept` for somebody else."""
        if not self.step.activations_on_host:
            return set()
        made = {t: op.group for op in self.ops if kinds[op.group] == "forward" for t in op.results}
        readers: dict[int, set[int]] = {}
        for op in self.ops:
            for tensor in op.operands:
                if made.get(tensor, op.group) != op.group:
                    readers.setdefault(tensor, set()).add(op.group)
        return {
            tensor
            for tensor, groups in readers.items()
            if all(kinds[group] == "backward" for group in groups)
            and tensor not in kept
            and is_worth_a_message(self.tensors[tensor].size_bytes)
        }

    def _sent(self, defined: Set[int]) -> frozenset[int]:
        """What operations of other layers, or those that anybody may copy, read of what is made
        here."""
        step = self.step
        return frozenset(
            number
            for (group, source), number in self.number.items()
            if group is None
            and number in defined
            and not step.is_shared(source)
            and any(
                not self.start <= step.op_layer[reader] < self.end
                for reader in step.consumers[source]
            )
        )
