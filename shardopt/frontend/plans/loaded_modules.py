"""The modules of a plan as MLIR, each read once however many ask for it.

    with plan.loaded as modules:
        program = read_program(modules[plan.module])

All stand in one context, which lives as long as the plan does. Whoever reads them leaves them as
they are: a pass that changes a module gets a copy of it (`shardopt.ir.rewriting.copy_of`)."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxlib.mlir import ir


class LoadedModules:
    """Modules by the bytes that they have as a file. They are looked at inside of `with`, by one
    thread at a time: the contexts that we make hold no locks of their own."""

    def __init__(self, context: ir.Context | None = None) -> None:
        self._context = context
        self._modules: dict[bytes, ir.Module] = {}
        self._lock = RLock()

    def __enter__(self) -> LoadedModules:
        from shardopt.ir.context import make_context

        self._lock.acquire()
        if self._context is None:
            self._context = make_context()
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._context is not None
        self._context.__exit__(None, None, None)
        self._lock.release()

    def __getitem__(self, data: bytes) -> ir.Module:
        return self.read(data)

    def read(self, data: bytes, name: str = "") -> ir.Module:
        """The module of a file's bytes; `name` stands for the file in messages. Raises
        DiagnosedError and UserError where it cannot be read."""
        from shardopt.ir.io import load_module

        assert self._context is not None
        if data not in self._modules:
            self._modules[data] = load_module(data, self._context, name=name)
        return self._modules[data]

    def keep(self, data: bytes, module: ir.Module) -> None:
        """Have `module`, of this context, stand for the bytes that it would be read from."""
        self._modules[data] = module

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a plan, in another process or here, reads its modules again."""
        return LoadedModules, ()
