"""ZB-V, V-Half and V-Min: the layers lie in a V, and the pace of a microbatch decides how much
memory it takes.

Zero Bubble Pipeline Parallelism (arXiv 2401.10241, section 6) and Pipeline Parallelism with
Controllable Memory (arXiv 2405.15362).

Mesh s of p has stage s on the way down and stage 2p - 1 - s on the way up. In slots of equal
length, a microbatch takes `down` slots from a mesh to the next one and `up` slots back, first
forward, then backward; the next microbatch does the same six slots later, as it has six tasks on a
mesh. The first mesh holds a microbatch longest for the stage on the way down, the last one for that
on the way up, and together every mesh holds it for about 2 (down + up) p slots: 2/6 (down + up) p
stages, which is p microbatches for (4, 2), half of it for (2, 1) and a third for (1, 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

from shardopt.schedule.homes import down_and_up
from shardopt.schedule.tasks import Schedule, Task, TaskKind

# What a mesh does with a microbatch, in this order; a weight half is two behind its input half.
_DOWN, _UP, _BACK_DOWN, _BACK_UP, _WEIGHT_UP, _WEIGHT_DOWN = range(6)
_PERIOD = 6
_Block = tuple[tuple[int, ...], ...]  # by mesh: slots of the first microbatch but its weight halves


def zb_v(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """No bubble but the fill, (p - 1) F / 2, in the memory of 1F1B's first stage."""
    return _build("zb-v", 4, 2, num_microbatches, num_meshes)


def v_half(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Half the memory of 1F1B's first stage and less than half its bubble."""
    return _build("v-half", 2, 1, num_microbatches, num_meshes)


def v_min(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """A third of the memory of 1F1B's first stage. Where tasks are not equally long, every
    microbatch adds to the bubble."""
    return _build("v-min", 1, 1, num_microbatches, num_meshes)


def _build(name: str, down: int, up: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """1. Repeat the block of one microbatch, with weight halves in the slots that it leaves free.

    2. Move the first tasks forward as far as the memory of this allows.
    3. At the end, where no forward waits for memory, let weight halves make way."""
    table = _Table(_block(down, up, num_meshes), num_microbatches)
    table.hurry_fill()
    table.squeeze()
    table.hurry_drain()
    homes = down_and_up(2 * num_meshes, num_meshes)
    return Schedule(name, num_microbatches, homes, tuple(table.tasks()))


def _block(down: int, up: int, num_meshes: int) -> _Block:
    """The block that waits least at its two turns on the way back, so that no two tasks of any
    microbatches meet in a slot. Of several the one that holds least, and the first of these."""
    for waits in range(2 * _PERIOD):
        found = []
        for wait in range(waits, -1, -1):
            block = _passage(down, up, num_meshes, wait, waits - wait)
            if all(len({slot % _PERIOD for slot in slots}) == len(slots) for slots in block):
                found.append(block)
        if len(found) > 1:
            found.sort(key=lambda block: _Table(block, 2 * num_meshes).most_held())
        if found:
            return found[0]
    raise AssertionError(f"no block of steps {down} and {up}")


def _passage(down: int, up: int, num_meshes: int, wait_first: int, wait_last: int) -> _Block:
    """One microbatch; it waits on the first mesh before it goes back, and then on the last one."""
    last, to_end, to_start = num_meshes - 1, down * (num_meshes - 1), up * (num_meshes - 1)
    turn = to_end + 1
    back = turn + to_start + 1 + wait_first
    turn_back = back + to_end + 1 + wait_last
    return tuple(
        (
            down * mesh,
            turn + up * (last - mesh),
            back + down * mesh,
            turn_back + up * (last - mesh),
        )
        for mesh in range(num_meshes)
    )


class _Table:
    """Who runs when: `rows` by mesh and slot (role, microbatch), `slots` by role and mesh the slot
    of every microbatch."""

    def __init__(self, block: _Block, num_microbatches: int) -> None:
        self.num_meshes, self.runs = len(block), range(num_microbatches)
        self.rows: list[dict[int, tuple[int, int]]] = []
        self.slots = {
            (role, mesh): [0] * num_microbatches for role in range(6) for mesh in range(len(block))
        }
        for mesh, begins in enumerate(block):
            self.rows.append({})
            for role, begin in enumerate(begins):
                for i in self.runs:
                    self._put(mesh, role, i, begin + _PERIOD * i)
            self._put_weights(mesh)

    def tasks(self) -> Iterator[tuple[Task, ...]]:
        kinds = (TaskKind.FORWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)
        for mesh, row in enumerate(self.rows):
            up = 2 * self.num_meshes - 1 - mesh
            stages = (mesh, up, up, mesh, up, mesh)
            yield tuple(
                Task(kinds[role // 2], stages[role], i) for _, (role, i) in sorted(row.items())
            )

    def most_held(self) -> int:
        return max(max(self._held(mesh)) for mesh in range(self.num_meshes))

    def squeeze(self) -> None:
        """Leave out idle slots: every mesh keeps its order."""
        free = [0] * self.num_meshes
        in_order, self.rows = self._in_order(range(6)), [{} for _ in self.rows]
        for _, mesh, role, i in in_order:
            slot = max(free[mesh], self._earliest(mesh, role, i))
            self._put(mesh, role, i, slot)
            free[mesh] = slot + 1

    def hurry_fill(self) -> None:
        """Move all tasks before the end of the first microbatch to the first free slot that its
        mesh has memory for. Later ones keep the order of the block, which is the one that bears
        tasks of unequal length."""
        limit, end = self.most_held(), self.slots[_BACK_UP, 0][0]
        held = [self._held(mesh) for mesh in range(self.num_meshes)]
        for slot, mesh, role, i in self._in_order(range(6), before=end):
            first, row, levels = self._earliest(mesh, role, i), self.rows[mesh], held[mesh]
            if role <= _UP:
                full = (at for at in range(slot - 1, first - 1, -1) if levels[at] >= limit)
                first = max(first, 1 + next(full, -1))
            better = next((at for at in range(first, slot) if at not in row), slot)
            if better == slot:
                continue
            del row[slot]
            self._put(mesh, role, i, better)
            if role <= _UP:
                levels[better:slot] = [level + 1 for level in levels[better:slot]]
            elif role >= _WEIGHT_UP:
                after = slice(better + 1, slot + 1)
                levels[after] = [level - 1 for level in levels[after]]

    def hurry_drain(self) -> None:
        """Behind the last forward of a mesh, input halves come as soon as they can, and weight
        halves in the slots that are left."""
        for mesh, row in enumerate(self.rows):
            last = max(self.slots[_UP, mesh][-1], self.slots[_DOWN, mesh][-1])
            for slot in [at for at, (role, _) in row.items() if role >= _WEIGHT_UP and at > last]:
                del row[slot]
        for slot, mesh, role, i in self._in_order((_BACK_DOWN, _BACK_UP)):
            first, row = self._earliest(mesh, role, i), self.rows[mesh]
            better = next((at for at in range(first, slot) if at not in row), slot)
            if better < slot:
                del row[slot]
                self._put(mesh, role, i, better)
        for mesh in range(self.num_meshes):
            self._put_weights(mesh)

    def _put(self, mesh: int, role: int, microbatch: int, slot: int) -> None:
        self.rows[mesh][slot] = role, microbatch
        self.slots[role, mesh][microbatch] = slot

    def _in_order(
        self, roles: Iterable[int], before: float = inf
    ) -> list[tuple[int, int, int, int]]:
        """Slot, mesh, role and microbatch of the tasks of some roles in slots before one."""
        return sorted(
            (slot, mesh, role, i)
            for mesh in range(self.num_meshes)
            for role in roles
            for i, slot in enumerate(self.slots[role, mesh])
            if slot < before
        )

    def _earliest(self, mesh: int, role: int, microbatch: int) -> int:
        """The slot behind what a task waits for and the same task of the microbatch before."""
        last = self.num_meshes - 1
        if role >= _WEIGHT_UP:
            role_before, mesh_before = role - 2, mesh
        elif role in (_DOWN, _BACK_DOWN):
            role_before, mesh_before = (role, mesh - 1) if mesh else (role - 1, 0)
        else:
            role_before, mesh_before = (role, mesh + 1) if mesh < last else (role - 1, last)
        earliest = 0 if role_before < 0 else self.slots[role_before, mesh_before][microbatch] + 1
        if microbatch:
            earliest = max(earliest, self.slots[role, mesh][microbatch - 1] + 1)
        return earliest

    def _put_weights(self, mesh: int) -> None:
        """Weight halves that are not in the table, in the order of their input halves, each in the
        first slot that is left."""
        row = self.rows[mesh]
        there = {run for run in row.values() if run[0] >= _WEIGHT_UP}
        waiting: deque[tuple[int, int]] = deque()
        slot, end = 0, max(row)
        while slot <= end or waiting:
            if slot not in row:
                if waiting:
                    self._put(mesh, *waiting.popleft(), slot)
            elif row[slot][0] in (_BACK_DOWN, _BACK_UP):
                weight = row[slot][0] + 2, row[slot][1]
                if weight not in there:
                    waiting.append(weight)
            slot += 1

    def _held(self, mesh: int) -> list[int]:
        """By slot how many activations of a stage a mesh holds, each from its forward until after
        its weight half."""
        row, held, levels = self.rows[mesh], 0, []
        for slot in range(max(row) + 1):
            role = row[slot][0] if slot in row else _BACK_DOWN
            held += role <= _UP
            levels.append(held)
            held -= role >= _WEIGHT_UP
        return levels
