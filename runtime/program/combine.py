"""Fewer messages: transfers between the same two meshes, at the same place in both lists, become
one.

SENDs stand together where no other instruction is between them, RECVs where at most the completion
of a received buffer is. Nothing is sent later or received earlier than before, so this costs
neither time nor memory, and it needs no hint in the module: it works on what the schedule made of
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardopt.runtime.program.instructions import Allgather, Broadcast, Instruction, Recv, Send

Lists = Sequence[Sequence[Instruction]]


def combine_transfers(lists: Lists) -> list[list[Instruction]]:
    """The lists of all meshes with one SEND and one RECV for each group, with the tag of its
    first SEND. What nobody receives is not sent."""
    stretch_of = {
        tag: (mesh, number)
        for mesh, instructions in enumerate(lists)
        for number, tags in enumerate(_stretches(instructions, Recv, (Allgather, Broadcast)))
        for tag in tags
    }
    # Tag of the group -> tags of its members, in the order of their SENDs.
    groups: dict[int, list[int]] = {}
    for instructions in lists:
        for tags in _stretches(instructions, Send, ()):
            together: dict[tuple[int, int], int] = {}
            for tag in tags:
                if tag not in stretch_of:  # nobody there uses it
                    continue
                groups.setdefault(together.setdefault(stretch_of[tag], tag), []).append(tag)
    sends = {
        each.tag: each for instructions in lists for each in instructions if isinstance(each, Send)
    }
    recvs = {
        each.tag: each for instructions in lists for each in instructions if isinstance(each, Recv)
    }
    group_of = {tag: group for group, tags in groups.items() for tag in tags}
    return [_combined(instructions, groups, group_of, sends, recvs) for instructions in lists]


def _combined(
    instructions: Sequence[Instruction],
    groups: dict[int, list[int]],
    group_of: dict[int, int],
    sends: dict[int, Send],
    recvs: dict[int, Recv],
) -> list[Instruction]:
    """A group stands where its first member stood in each list."""
    combined: list[Instruction] = []
    done: set[tuple[type, int]] = set()
    for each in instructions:
        if not isinstance(each, Send | Recv):
            combined.append(each)
            continue
        group = group_of.get(each.tag)
        if group is None or (type(each), group) in done:
            continue
        done.add((type(each), group))
        if isinstance(each, Send):
            members = [sends[tag] for tag in groups[group]]
            combined.append(
                Send(
                    group,
                    _join(s.buffers for s in members),
                    each.target,
                    _join(s.routes for s in members),
                )
            )
        else:
            taken = [recvs[tag] for tag in groups[group]]
            combined.append(
                Recv(
                    group,
                    _join(r.buffers for r in taken),
                    each.source,
                    _join(r.routes for r in taken),
                )
            )
    return combined


def _stretches(
    instructions: Sequence[Instruction], kind: type[Send | Recv], between: tuple[type, ...]
) -> list[list[int]]:
    """The tags of SENDs (RECVs) that stand together."""
    stretches: list[list[int]] = [[]]
    for each in instructions:
        if isinstance(each, kind):
            stretches[-1].append(each.tag)
        elif not isinstance(each, between) and stretches[-1]:
            stretches.append([])
    return stretches


def _join(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(number for part in parts for number in part)
