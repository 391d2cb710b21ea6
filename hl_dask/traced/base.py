"""What operations need to know of a traced array, apart from its methods."""

from __future__ import annotations

from typing import Any, ClassVar

from hl_dask.traced.tracer import Tracer


class Traced:
    """A concrete sample value with the node that made it.

    The operations build their results with :meth:`make`; the class with the methods, which in turn
    call the operations, registers itself when it is defined.
    """

    __slots__ = ("fresh", "node", "tracer", "value")
    array_type: ClassVar[type[Traced]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Traced.array_type = cls

    def __init__(self, tracer: Tracer, node: int, value: Any, fresh: bool = True) -> None:
        self.tracer = tracer
        self.node = node
        self.value = value
        self.fresh = fresh

    @staticmethod
    def make(tracer: Tracer, node: int, value: Any, fresh: bool = True) -> Any:
        """A traced array."""
        return Traced.array_type(tracer, node, value, fresh)


def is_traced(value: Any) -> bool:
    """Whether a value is a traced array (which claims to be the class of its sample value)."""
    return isinstance(value, Traced)
