"""What may be done with arguments of `@main` that lie in the memory of the hosts.

They are streamed: each fragment, or call of one, outside of the loop that reads such an argument is
given a copy on the devices, and the result that replaces it goes back when it is made. Nothing else
can reach them: not the loop, whose fragments would fetch them for every microbatch, and no other
mesh."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation, read_on_host
from shardopt.ir.rewriting import terminator

CALLS = ("mpmd.fragment", "mpmd.fragment_call")


def host_memory_faults(main: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Readers that are neither fragments nor calls, and replacements that these do not make.
    `donation_faults` says which arguments may not lie there at all."""
    block, donated = main.regions[0].blocks[0], read_donation(main)
    returned = list(terminator(block).operands)
    for number in sorted(read_on_host(main) & donated.keys()):
        for use in block.arguments[number].uses:
            reader = use.owner.operation
            if reader.name not in CALLS:
                yield (
                    reader,
                    f"argument {number} lies in the memory of the host: expected fragments outside "
                    f"of the loop to read it, found '{reader.name}'",
                )
        result = returned[donated[number]]
        maker = result.owner
        if not isinstance(maker, ir.Operation | ir.OpView) or maker.operation.name not in CALLS:
            yield (
                main,
                f"argument {number} lies in the memory of the host: expected a fragment to make "
                f"result {donated[number]}, which replaces it",
            )
        elif returned.count(result) > 1:
            yield (
                maker.operation,
                f"argument {number} lies in the memory of the host: expected result "
                f"{donated[number]}, which replaces it, to be no other result",
            )
