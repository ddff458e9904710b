"""Results that stay: a JSON document a line, one for each cell of a figure, added when it is done.

A command that is started again leaves out what its file has; a cell is run anew once its line is
deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from time import process_time

from benchmarks.alpa.revision import revision
from shardopt.support.errors import UserError

Result = dict[str, object]


def read_results(path: Path) -> dict[str, Result]:
    """By cell; of several lines the last."""
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return {str(line["cell"]): line for line in lines}


def fill(path: Path, cells: Iterable[str], run: Callable[[str], Result]) -> dict[str, Result]:
    """Run the cells that the file does not have, in order. An error of the user's kind is a result:
    its first line is kept as the reason."""
    results = read_results(path)
    for cell in cells:
        if cell in results:
            continue
        begin = process_time()
        try:
            result = run(cell)
        except UserError as error:
            result = {"reason": message(error)}
        seconds = round(process_time() - begin, 1)
        results[cell] = {"cell": cell, **result, "cpu_seconds": seconds, "revision": revision()}
        with path.open("a") as file:
            file.write(json.dumps(results[cell]) + "\n")
    return results


def message(error: UserError) -> str:
    """Its first line, without the place in the model."""
    return str(error).partition("\n")[0].rpartition(": error: ")[2]
