"""Rows of ArrayRecord files, whose records are tf.train.Example: features by name, each a list of
numbers.

The format of the records is that of
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto; neither
TensorFlow nor what it makes of that file is needed to read it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    import numpy as np

# Parts of names: writers of several files put their number behind.
_NAMES = (".array_record", ".arrayrecord")
_AT_ONCE = 1024  # records of one part, which is in memory as a whole


def holds_records(file: Path) -> bool:
    return any(each in file.name for each in _NAMES)


@dataclass(frozen=True)
class Records:
    """Some records of a file, one a row."""

    file: Path
    first: int
    count: int
    names: tuple[str, ...]

    def rows(self) -> dict[str, int]:
        return dict.fromkeys(self.names, self.count)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Rows of as many numbers as the features have. Raises UserError."""
        import numpy as np

        features = [
            _features(f"'{self.file}': record {number}", record)
            for number, record in enumerate(
                _read(self.file, self.first, self.first + self.count), self.first
            )
        ]
        arrays = {}
        for name in names:
            rows = [each.get(name) for each in features]
            sizes = sorted({0 if row is None else len(row) for row in rows})
            if len(sizes) != 1 or not sizes[0]:
                raise UserError(
                    f"'{self.file}': feature '{name}': expected equally many numbers in every "
                    f"record, found {', '.join(map(str, sizes[:4]))}"
                )
            arrays[name] = np.stack([row for row in rows if row is not None])
        return arrays


def record_parts(file: Path) -> list[Records]:
    """Raises UserError."""
    count = _count(file)
    (first,) = _read(file, 0, 1)
    names = tuple(sorted(_features(f"'{file}': record 0", first)))
    if not names:
        raise UserError(f"'{file}': record 0 has no features of numbers")
    starts = range(0, count, _AT_ONCE)
    return [Records(file, start, min(_AT_ONCE, count - start), names) for start in starts]


def _count(file: Path) -> int:
    # The reader finds no records in what is not there.
    if not os.access(file, os.R_OK):
        raise UserError(f"cannot read '{file}': it is not there, or not for this user")
    reader = _reader(file)
    count: int = reader.num_records()
    reader.close()
    if not count:
        raise UserError(f"'{file}' has no records, or is damaged, or no ArrayRecord file")
    return count


def _read(file: Path, start: int, end: int) -> list[bytes]:
    reader = _reader(file)
    try:
        records: list[bytes] = reader.read(start, end)
    except (IndexError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot read '{file}': {error}") from error
    finally:
        reader.close()
    if len(records) != end - start:
        raise UserError(f"cannot read '{file}': it is damaged behind record {start + len(records)}")
    return records


def _reader(file: Path) -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError:
        raise UserError(
            f"'{file}' needs array_record, to read ArrayRecord: pip install 'shardopt[records]'"
        ) from None
    # Nothing is read ahead: a part is one call, and the next one may be anywhere.
    return ArrayRecordReader(str(file), options="readahead_buffer_size:0")


def _features(where: str, record: bytes) -> dict[str, np.ndarray]:
    """Those that are numbers, by name. Raises UserError."""
    import numpy as np
    from google.protobuf.message import DecodeError

    example = _example_type()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise UserError(f"{where} is no tf.train.Example: {error}") from error
    features: dict[str, np.ndarray] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "int64_list":
            features[name] = np.array(feature.int64_list.value, np.int64)
        elif kind == "float_list":
            features[name] = np.array(feature.float_list.value, np.float32)
    return features


@cache
def _example_type() -> Any:
    """The message tf.train.Example, in a pool of its own: TensorFlow, where it is there, has
    another one of that name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shardopt/example.proto", package="shardopt", syntax="proto3"
    )

    def message(name: str, fields: Iterable[tuple[str, int, int, str, bool]]) -> Any:
        made = file.message_type.add(name=name)
        for field_name, number, kind, type_name, repeated in fields:
            made.field.add(
                name=field_name,
                number=number,
                type=kind,
                type_name=type_name or None,
                label=field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL,
            )
        return made

    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        message(name, [("value", 1, kind, "", True)])
    one_of = [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")]
    feature = message(
        "Feature",
        [
            (name, number, field.TYPE_MESSAGE, f".shardopt.{type_}", False)
            for number, (name, type_) in enumerate(one_of, 1)
        ],
    )
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    features = message(
        "Features",
        [("feature", 1, field.TYPE_MESSAGE, ".shardopt.Features.FeatureEntry", True)],
    )
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".shardopt.Feature",
        label=field.LABEL_OPTIONAL,
    )
    message("Example", [("features", 1, field.TYPE_MESSAGE, ".shardopt.Features", False)])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shardopt.Example"))
