"""How modules and ops are printed: one value for all the flags by which MLIR's printer can be
told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from jaxlib.mlir import ir

from shardopt.ir.line_breaking import broken
from shardopt.ir.value_names import text_with_unique_names


@dataclass(frozen=True)
class PrintStyle:
    """Flags of the printer, under the names of mlir-opt; limits count elements and characters, None
    prints all. Lines longer than `width` are broken at the commas of their lists."""

    debug_info: bool = False
    pretty_debug_info: bool = False
    generic: bool = False
    local_scope: bool = False
    nameloc_as_prefix: bool = False
    skip_regions: bool = False
    elements_limit: int | None = None
    resource_limit: int | None = None
    assume_verified: bool = False
    width: int | None = None
    unique_names: bool = False
    users: bool = False

    def text(self, op: ir.Operation | ir.OpView, *, verified: bool = False) -> str:
        """The op as text that ends in a newline. Unless `verified`, invalid IR is found and printed
        in generic form."""
        if self.unique_names or self.users:
            plain = replace(self, unique_names=False, users=False, nameloc_as_prefix=True)
            print_ = partial(replace(plain, width=None).text, verified=verified)
            named = text_with_unique_names(op, print_, users=self.users)
            return named if self.width is None else broken(named, self.width)
        text = op.get_asm(
            enable_debug_info=self.debug_info or self.pretty_debug_info,
            pretty_debug_info=self.pretty_debug_info,
            print_generic_op_form=self.generic,
            use_local_scope=self.local_scope,
            use_name_loc_as_prefix=self.nameloc_as_prefix,
            skip_regions=self.skip_regions,
            large_elements_limit=self.elements_limit,
            large_resource_limit=self.resource_limit,
            assume_verified=verified or self.assume_verified,
        )
        text = str(text).rstrip("\n") + "\n"
        return text if self.width is None else broken(text, self.width)

    def complete(self) -> PrintStyle:
        """The style that leaves out nothing, in lines as they come: to tell whether two ops are the
        same."""
        return PrintStyle(
            debug_info=self.debug_info or self.pretty_debug_info,
            assume_verified=self.assume_verified,
        )


PLAIN = PrintStyle()
