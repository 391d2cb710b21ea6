"""What operations need to know of a traced array, apart from its methods."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

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


def is_traced(value: Any) -> TypeGuard[Any]:
    """Whether a value is a traced array (which claims to be the class of its sample value)."""
    return isinstance(value, Traced)


def sample_value(value: Any) -> Any:
    """The concrete value of a traced array; any other value as it is."""
    return value.value if isinstance(value, Traced) else value


def traced_operands(value: Any) -> list[Any]:
    """All traced arrays within (nested) arguments."""
    if is_traced(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in traced_operands(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in traced_operands(v)]
    return []


def has_rows(value: Any) -> bool:
    """Whether there is a traced array with one entry per row within (nested) arguments."""
    return any(operand.axis >= 0 for operand in traced_operands(value))
