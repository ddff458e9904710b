"""`shardopt.token_slices` on the microbatch loop: how the tokens of a causal model are cut, and
which layers of the model its stages have.

    mpmd.for (…) {shardopt.token_slices = {layers = array<i64: 0, 2, 4>,
                                           lengths = array<i64: 5, 3>}} …

Two slices, of 5 and 3 tokens, go through two stages, of layers 0, 1 and 2, 3. In the IR stage
s · 2 + k is slice k on stage s of the model, and has layers of its own."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

TOKEN_SLICES = "shardopt.token_slices"


@dataclass(frozen=True)
class TokenSlices:
    """`lengths` of the slices in tokens; `borders`: stage s of the model has the layers from
    `borders[s]` on, up to `borders[s + 1]`."""

    lengths: tuple[int, ...]
    borders: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.lengths)

    def layer(self, model_layer: int, k: int) -> int:
        """The layer that a layer of the model is for slice k."""
        stage = next(s for s, stop in enumerate(self.borders[1:]) if model_layer < stop)
        first, stop = self.borders[stage : stage + 2]
        return self.count * first + k * (stop - first) + model_layer - first

    def model_layers(self) -> dict[int, int]:
        """The layer of the model that each layer is for one of the slices."""
        slices = range(self.count)
        return {self.layer(m, k): m for m in range(self.borders[-1]) for k in slices}


def write_token_slices(loop: ir.Operation, slices: TokenSlices) -> None:
    loop.attributes[TOKEN_SLICES] = ir.DictAttr.get(
        {
            "lengths": ir.DenseI64ArrayAttr.get(list(slices.lengths)),
            "layers": ir.DenseI64ArrayAttr.get(list(slices.borders)),
        }
    )


def read_token_slices(loop: ir.Operation) -> TokenSlices | None:
    """None where tokens are not cut. Raises ValueError for another form."""
    if TOKEN_SLICES not in loop.attributes:
        return None
    try:
        fields = ir.DictAttr(loop.attributes[TOKEN_SLICES])
        lengths, borders = (
            tuple(ir.DenseI64ArrayAttr(fields[name])) for name in ("lengths", "layers")
        )
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"expected '{TOKEN_SLICES}' to have lengths and layers, found "
            f"{loop.attributes[TOKEN_SLICES]}"
        ) from error
    return TokenSlices(lengths, borders)
