"""What a traced array gives to Python: truth, numbers, text, a hash."""

from __future__ import annotations

from typing import Any

from hl_dask.traced.base import Traced


class Concrete(Traced):
    """A traced array as Python sees it.

    A portfolio value, such as a total, is taken to be what it is over all rows; the run verifies
    it. A value with one entry per row that leaves the trace makes the running formula opaque.
    """

    __slots__ = ()

    @property
    def per_point(self) -> bool:
        """Whether there is one value (or one row of values) for each model point."""
        return self.axis >= 0

    # ---- portfolio values as Python values ---------------------------------------------------

    def concrete(self) -> Any:
        """The value over all rows, as a plain value, of a portfolio value."""
        return self.tracer.concretise(self)

    def _scalar(self, what: str) -> Any:
        if self.per_point:
            self.tracer.escape(f"{what} of a value with one entry per row")
            return self.value
        return self.concrete()

    def __bool__(self) -> bool:
        if self.per_point:
            msg = (
                "the truth value of an array with one entry per row is ambiguous; "
                "use np.where(condition, a, b), or .any() and .all()"
            )
            raise ValueError(msg)
        return bool(self.concrete())

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __index__(self) -> int:
        if self.per_point:
            msg = "only integer scalar arrays can be converted to a scalar index"
            raise TypeError(msg)
        return int(self.concrete().__index__())

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __round__(self, ndigits: int | None = None) -> Any:
        if self.per_point:
            return round(self.value, ndigits)
        return round(self.concrete()) if ndigits is None else round(self.concrete(), ndigits)

    def __format__(self, spec: str) -> str:
        return format(self._scalar("text"), spec)

    def __str__(self) -> str:
        return str(self._scalar("str()"))

    def __repr__(self) -> str:
        return repr(self._scalar("repr()"))

    def item(self, *args: Any) -> Any:
        """See :class:`numpy.ndarray`."""
        return self._scalar("item()").item(*args)

    def tolist(self) -> Any:
        """See :class:`numpy.ndarray`."""
        return self._scalar("tolist()").tolist()

    def tobytes(self, *args: Any) -> bytes:
        """See :class:`numpy.ndarray`."""
        return bytes(self._scalar("tobytes()").tobytes(*args))

    def __hash__(self) -> int:
        if self.per_point or self.ndim:
            msg = "unhashable type: 'numpy.ndarray'"
            raise TypeError(msg)
        return hash(self.concrete())
