"""What operations need to know of a traced array, apart from its methods."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

import numpy as np

from hl_dask.traced.tracer import Tracer

UNSEEN: Any = object()
"""Stands for the sample value of a traced array that has none, in a blind trace."""


class Traced:
    """A concrete sample value with the node that made it.

    The operations build their results with :meth:`make`; the class with the methods, which in turn
    call the operations, registers itself when it is defined. In a blind trace ``value`` is not set,
    and type and shape are those that the graph remembers.
    """

    __slots__ = ("fresh", "node", "tracer", "value")
    array_type: ClassVar[type[Traced]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Traced.array_type = cls

    def __init__(self, tracer: Tracer, node: int, value: Any, fresh: bool = True) -> None:
        self.tracer = tracer
        self.node = node
        self.fresh = fresh
        if value is not UNSEEN:
            self.value = value

    def __getattr__(self, name: str) -> Any:
        # Python comes here for what is not found otherwise: also for a value that is not set.
        if name == "value":
            raise self.tracer.value_needed()
        msg = f"'numpy.ndarray' object has no attribute {name!r}"
        raise AttributeError(msg)

    @property
    def axis(self) -> int:
        """The point axis, -1 for a portfolio value."""
        return self.tracer.graph.metas[self.node].axis

    @property
    def ndim(self) -> int:
        """See :class:`numpy.ndarray`."""
        _, shape, axis = self.tracer.graph.metas[self.node]
        return len(shape) + (axis >= 0)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of the value on the sample."""
        _, shape, axis = self.tracer.graph.metas[self.node]
        return shape if axis < 0 else (*shape[:axis], self.tracer.sample_rows, *shape[axis:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`numpy.ndarray`."""
        if self.tracer.blind:
            dtype = np.dtype(self.tracer.graph.metas[self.node].dtype)
            if dtype.kind not in "VO":  # of these a type string does not tell everything
                return dtype
        found: np.dtype[Any] = self.value.dtype
        return found

    @staticmethod
    def make(tracer: Tracer, node: int, value: Any = UNSEEN, fresh: bool = True) -> Any:
        """A traced array."""
        return Traced.array_type(tracer, node, value, fresh)


def is_traced(value: Any) -> TypeGuard[Any]:
    """Whether a value is a traced array (which claims to be the class of its sample value)."""
    return isinstance(value, Traced)


def sample_value(value: Any) -> Any:
    """The concrete value of a traced array; any other value as it is."""
    return value.value if isinstance(value, Traced) else value


def dimensions(value: Any) -> int:
    """The number of axes of a traced array or of any other value."""
    return value.ndim if isinstance(value, Traced) else np.ndim(value)


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
