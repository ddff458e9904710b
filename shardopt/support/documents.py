"""Documents that people write: YAML and JSON texts, read into dataclasses by a description of their
fields.

    # of shardopt.support.records
    LINK = Record(Link, {"latency_seconds": Field(Number(at_least=0)), ...})
    link = read_document(LINK, value, "link.yaml")  # UserError with file and field
    schema = LINK.schema()

All errors of a document are found in one pass (`errors_of`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardopt.support.errors import UserError
from shardopt.support.files import read_regular
from shardopt.support.readers import ValueReader


def errors_of(reader: ValueReader, value: Any) -> tuple[Any, tuple[str, ...]]:
    """What is read, and everything that is wrong; where something is, what is read must not be
    used."""
    errors: list[str] = []
    return reader.read(value, "", errors), tuple(errors)


def read_document(reader: ValueReader, value: Any, file: str) -> Any:
    """Raises UserError with the file and the first error."""
    read, errors = errors_of(reader, value)
    if errors:
        raise UserError(f"{file}: {errors[0]}")
    return read


def read_text(path: Path, what: str) -> str:
    """The text of a file; raises UserError that calls it `what`."""
    try:
        return read_regular(path).decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except ValueError:  # not UTF-8, or a name that no file can have
        raise UserError(f"{path}: cannot read the {what}: not UTF-8 text") from None


def json_text(value: Any, indent: str = "") -> str:
    """JSON with a line for every field and item, but lists of numbers in one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        lines = [
            f"{inner}{json.dumps(name)}: {json_text(item, inner)}" for name, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(item, str | dict) for item in value):
        return (
            "[\n"
            + ",\n".join(f"{inner}{json_text(item, inner)}" for item in value)
            + f"\n{indent}]"
        )
    return json.dumps(value)


def parse_text(text: str, file: str) -> Any:
    """The values of a JSON text (by the name of its file) or a YAML text. Raises UserError with
    file and line."""
    if file.endswith(".json"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # a number of too many digits, or too deep
            raise UserError(f"{file}: not valid JSON: {error}") from None
    import yaml  # after the JSON branch: a JSON document needs no YAML library

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(
            f"{file}{line}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError, IndexError) as error:
        # PyYAML lets errors of its constructors through: `2024-13-01` is no date, `!!int x` no
        # number.
        raise UserError(f"{file}: not valid YAML: {error}") from None
