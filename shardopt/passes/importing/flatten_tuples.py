"""Replace tuples by what they hold: arguments, results, and values in between.

Needs: no calls (shardopt-inline-calls). Holds afterwards: no argument or result of a function is a
tuple, and nothing packs or takes apart one that the module makes itself. Attributes of an argument
or a result hold for each value of its tuple; a sharding of a tuple is one for each. What replaces
an argument is counted by values.

    func.func public @main(%a: tuple<tensor<4x8xf32>, tensor<8xf32>>) -> tuple<tensor<8xf32>> {
      %0 = stablehlo.get_tuple_element %a[1]
      %1 = stablehlo.tanh %0
      %2 = stablehlo.tuple %1
      return %2
    }
 =>
    func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
      %1 = stablehlo.tanh %b
      return %1
    }

A custom call that makes a tuple of at least two values makes them one by one, which is the same
program for XLA. One that reads a tuple is handed a buffer of pointers: it stays, and is refused
later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import ALIASING_OUTPUT, REPLACED_BY
from shardopt.ir.rewriting import defining, functions, operations, replace_op
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.importing.user_shardings import split_texts

_TUPLE, _ELEMENT, _CALL = "stablehlo.tuple", "stablehlo.get_tuple_element", "stablehlo.custom_call"
_SHARDING = "mhlo.sharding"
_MARKER = "Sharding"

Attributes = dict[str, ir.Attribute]


def _leaf_types(type_: ir.Type) -> list[ir.Type]:
    if not isinstance(type_, ir.TupleType):
        return [type_]
    parts = (type_.get_type(number) for number in range(type_.num_types))
    return [leaf for part in parts for leaf in _leaf_types(part)]


def _packed(type_: ir.Type, leaves: Iterator[ir.Value]) -> ir.Value:
    """A value of the type from the next leaves."""
    if not isinstance(type_, ir.TupleType):
        return next(leaves)
    parts = [_packed(type_.get_type(number), leaves) for number in range(type_.num_types)]
    return stablehlo.TupleOp(parts, results=[type_]).result


def _leaves(value: ir.Value) -> list[ir.Value]:
    if not isinstance(value.type, ir.TupleType):
        return [value]
    made = defining(value, _TUPLE)
    numbers = range(value.type.num_types)
    parts = made.operands if made else [_element(value, number) for number in numbers]
    return [leaf for part in parts for leaf in _leaves(part)]


def _element(value: ir.Value, number: int) -> ir.Value:
    return stablehlo.GetTupleElementOp(value, number).result


def _texts(text: str, types: Sequence[ir.Type]) -> list[str]:
    """The sharding of each leaf; raises ValueError where there are others."""
    texts = split_texts(text)
    if len(texts) == 1 and not text.startswith("{{"):
        return texts * len(types)
    if len(texts) != len(types):
        raise ValueError(f"expected {len(types)} shardings, found {len(texts)} in '{text}'")
    return texts


@dataclass
class _Flattener:
    function: ir.Operation
    pm: PassContext

    def run(self) -> bool:
        """Whether there was anything that may have to do with tuples."""
        type_ = ir.FunctionType(ir.TypeAttr(self.function.attributes["function_type"]).value)
        packed = any(isinstance(each, ir.TupleType) for each in (*type_.inputs, *type_.results))
        if packed:
            self._flatten_signature(type_)
        concerned = operations(self.function, (_TUPLE, _ELEMENT, _CALL))
        for op in concerned:
            with ir.InsertionPoint(op), op.location:
                self._flatten_op(op)
        # What is taken apart above may have made tuples anew.
        for op in reversed(operations(self.function, (_TUPLE,)) if concerned else ()):
            if not list(op.results[0].uses):
                op.erase()
        return packed or bool(concerned)

    def _flatten_signature(self, type_: ir.FunctionType) -> None:
        inputs = [_leaf_types(each) for each in type_.inputs]
        results = [_leaf_types(each) for each in type_.results]
        block = self.function.regions[0].blocks[0]
        arguments = list(block.arguments)
        flat = [
            [block.add_argument(leaf, argument.location) for leaf in leaves]
            for argument, leaves in zip(arguments, inputs, strict=True)
        ]
        with ir.InsertionPoint.at_block_begin(block), self.function.location:
            for argument, leaves in zip(arguments, flat, strict=True):
                argument.replace_all_uses_with(_packed(argument.type, iter(leaves)))
        for _ in arguments:
            block.erase_argument(0)
        end = list(block.operations)[-1].operation
        with ir.InsertionPoint(end), end.location:
            func.ReturnOp([leaf for value in end.operands for leaf in _leaves(value)])
        end.erase()
        self._flatten_attributes("arg_attrs", inputs, results)
        self._flatten_attributes("res_attrs", results, results)
        types = [[leaf for leaves in each for leaf in leaves] for each in (inputs, results)]
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))

    def _flatten_attributes(
        self, name: str, values: Sequence[list[ir.Type]], results: Sequence[list[ir.Type]]
    ) -> None:
        if name not in self.function.attributes:
            return
        rows = [
            row
            for attributes, leaves in zip(
                ir.ArrayAttr(self.function.attributes[name]), values, strict=True
            )
            for row in self._rows(entries(ir.DictAttr(attributes)), leaves, results)
        ]
        self.function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])

    def _rows(
        self, attributes: Attributes, leaves: list[ir.Type], results: Sequence[list[ir.Type]]
    ) -> Iterable[Attributes]:
        """What an argument or result says, of each of its leaves."""
        rows = [dict(attributes) for _ in leaves]
        if isinstance(attributes.get(_SHARDING), ir.StringAttr):
            said = self._said(self.function, attributes[_SHARDING], leaves)
            for row, sharding in zip(rows, said, strict=True):
                row[_SHARDING] = sharding
        for key in (ALIASING_OUTPUT, REPLACED_BY):
            number = attributes.get(key)
            if not isinstance(number, ir.IntegerAttr) or not 0 <= number.value < len(results):
                continue  # a number of no result is for the verifier
            if results[number.value] != leaves:
                raise self.pm.error(
                    self.function,
                    f"expected result {number.value}, which replaces a tuple, to hold the same "
                    f"types, found {_listed(results[number.value])} for {_listed(leaves)}",
                )
            first = sum(map(len, results[: number.value]))
            for position, row in enumerate(rows):
                row[key] = ir.IntegerAttr.get(number.type, first + position)
        return rows

    def _said(
        self, op: ir.Operation, sharding: ir.Attribute, leaves: Sequence[ir.Type]
    ) -> list[ir.StringAttr]:
        try:
            texts = _texts(ir.StringAttr(sharding).value, leaves)
        except ValueError as error:
            raise self.pm.error(op, f"sharding annotation of a tuple: {error}") from None
        return [ir.StringAttr.get(text) for text in texts]

    def _flatten_op(self, op: ir.Operation) -> None:
        if op.name == _ELEMENT:
            made = defining(op.operands[0], _TUPLE)
            if made is not None:
                part = made.operands[ir.IntegerAttr(op.attributes["index"]).value]
                replace_op(op, [self._stated(op, part)])
        elif op.name == _TUPLE:
            if _SHARDING in op.attributes:
                replace_op(op, [self._stated(op, op.results[0])])
        elif _is_marker(op):
            replace_op(op, [self._stated(op, op.operands[0])])
        elif [isinstance(result.type, ir.TupleType) for result in op.results] == [True]:
            self._flatten_call(op)

    def _stated(self, op: ir.Operation, value: ir.Value) -> ir.Value:
        """The value behind what `op` says of its sharding, leaf by leaf."""
        if not isinstance(op.attributes.get(_SHARDING, None), ir.StringAttr):
            return value
        if op.name == _TUPLE:
            leaves = [leaf for operand in op.operands for leaf in _leaves(operand)]
        else:
            leaves = _leaves(value)
        stated = []
        said = self._said(op, op.attributes[_SHARDING], [leaf.type for leaf in leaves])
        for leaf, sharding in zip(leaves, said, strict=True):
            marker = stablehlo.CustomCallOp([leaf.type], [leaf], call_target_name=_MARKER)
            marker.operation.attributes[_SHARDING] = sharding
            stated.append(marker.operation.result)
        return _packed(value.type, iter(stated))

    def _flatten_call(self, op: ir.Operation) -> None:
        type_ = op.results[0].type
        types = [type_.get_type(number) for number in range(type_.num_types)]
        if len(types) < 2 or any(isinstance(each, ir.TupleType) for each in types):
            return
        call = ir.Operation.create(
            op.name, types, list(op.operands), dict(op.attributes), loc=op.location
        )
        replace_op(op, [_packed(type_, iter(call.results))])


def _is_marker(op: ir.Operation) -> bool:
    return (
        op.name == _CALL
        and ir.StringAttr(op.attributes["call_target_name"]).value == _MARKER
        and [isinstance(each.type, ir.TupleType) for each in op.operands] == [True]
    )


def _listed(types: Sequence[ir.Type]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


@dataclass(frozen=True)
class FlattenTuples(Pass):
    name = "shardopt-flatten-tuples"
    summary = "replace arguments, results and values that are tuples by what they hold"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        concerned = [_Flattener(function, pm).run() for function in functions(module)]
        if not any(concerned):
            pm.preserve()
