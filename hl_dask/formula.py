"""Formulas: memoised methods, their signatures, and the sessions that evaluate them.

A formula is called through a *session*, kept on the instance as ``_session``. The plain session
memoises values; the session of a trace records them; the session of a block hands out values of that
block. The wrapper on the class is the same for all.

Deep recursion. ``pols_if(5000)``, cold, nests tens of thousands of Python calls. Raising the
recursion limit would change the user's interpreter and may still overflow the C stack, so every
:data:`HOP` nested formula calls the next one is evaluated on a new thread, whose stack is empty, while
the caller waits. Only one of the threads runs at a time, and they share one call stack of formulas.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import numpy as np

from hl_dask.errors import CycleError, FormulaError, HlDaskError, ModelError

HOP = 60
"""Nested formula calls on one thread; with helpers and generators they stay far below 1,000 frames."""
MAX_DEPTH = 100_000
"""Nested formula calls after which a recursion is taken to be endless."""


OWN_STATE = frozenset(
    [
        "_session",
        "_points",
        "_scalars",
        "_plan",
        "_recording",
        "_result",
        "_reports",
        "_proj_len",
        "_default_agg",
        "_derived",
    ]
)
"""Attributes of a model instance that belong to the framework."""


class _Default:
    """Stands for the aggregate of the model; one object, also after pickling."""

    def __repr__(self) -> str:
        return "default aggregate"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT: Any = _Default()
F = TypeVar("F", bound=Callable[..., Any])


@overload
def agg(function: None) -> Callable[[F], F]: ...
@overload
def agg(function: Callable[..., Any]) -> Callable[[F], F]: ...
def agg(function: Callable[..., Any] | None) -> Callable[[F], F]:
    """Say how the values of a formula are aggregated over the model points.

    Parameters
    ----------
    function : callable or None
        ``None``: the formula is evaluated but not reported. ``np.sum`` (the default of a model),
        ``np.min``, ``np.max``, ``np.mean``, ``np.any``, ``np.all``, ``len``, :class:`~hl_dask.Sum`,
        :class:`~hl_dask.Aggregate`; any other callable is traced like a formula, and used or refused.

    Returns
    -------
    callable
        A decorator for a formula.
    """

    def decorate(method: F) -> F:
        method._hl_agg = function  # type: ignore[attr-defined]
        return method

    return decorate


def per_point(method: F) -> F:
    """Declare that a formula works row by row, although hl_dask cannot see that it does.

    Such a formula is evaluated as plain Python on blocks of rows. The declaration is checked on the
    sample: a random third of the rows, single rows, duplicated rows and changed columns must give the
    same values row by row.
    """
    method._hl_per_point = True  # type: ignore[attr-defined]
    return method


def call_text(name: str, args: tuple[Any, ...]) -> str:
    """A formula call as it would be written: ``pols_if_at(3, 'BEF_DECR')``."""
    return f"{name}({', '.join(_short(a) for a in args)})"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "..."


class Formula:
    """A formula of a model class: a descriptor around the user's function.

    Attributes
    ----------
    name : str
        The attribute name, whatever the function's own name is (lambdas are all called alike).
    params : tuple of str
        Parameters without ``self``.
    agg : callable, None or DEFAULT
        How values are aggregated.
    per_point : bool
        Declared with :func:`per_point`.
    """

    def __init__(self, function: Callable[..., Any], name: str, owner: str) -> None:
        self.function = function
        self.name = name
        self.owner = owner
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.agg: Any = getattr(function, "_hl_agg", DEFAULT)
        self.per_point: bool = getattr(function, "_hl_per_point", False)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.signature = inspect.Signature(parameters)
        self.params = tuple(p.name for p in parameters)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.arity = len(parameters) if all(p.kind in positional for p in parameters) else -1

    def __repr__(self) -> str:
        return f"<formula {self.owner}.{self.name}({', '.join(self.params)})>"

    @property
    def of_t(self) -> bool:
        """Whether t is the only parameter."""
        return self.params == ("t",)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Canonical arguments: ``f(1)``, ``f(t=1)`` and a defaulted argument give one tuple."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(
            tuple(sorted(v.items())) if isinstance(v, dict) else v for v in bound.arguments.values()
        )

    def evaluate(self, instance: Any, key: tuple[Any, ...]) -> Any:
        """Call the user's function with canonical arguments."""
        if self.arity >= 0:
            return self.function(instance, *key)
        bound = self.signature.bind_partial()
        for parameter, value in zip(self.signature.parameters.values(), key, strict=True):
            is_dict = parameter.kind is inspect.Parameter.VAR_KEYWORD
            bound.arguments[parameter.name] = dict(value) if is_dict else value
        return self.function(instance, *bound.args, **bound.kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = BoundFormula(self, instance)
        if getattr(type(instance), self.name, None) is self:
            # The next access finds it in the instance without coming here. An overridden formula,
            # reached through super(), must not take the place of the overriding one.
            instance.__dict__[self.name] = bound
        return bound


class BoundFormula:
    """A formula of one model instance: call it, or look at its cached values."""

    __slots__ = ("formula", "instance")

    def __init__(self, formula: Formula, instance: Any) -> None:
        self.formula = formula
        self.instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.instance._session.call(self.formula, self.instance, args, kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self.instance, self.formula.name)

    def __repr__(self) -> str:
        return f"{self.formula!r}, {len(self.cache)} cached values"

    @property
    def __name__(self) -> str:
        return self.formula.name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.formula.__doc__

    @property
    def cache(self) -> dict[tuple[Any, ...], Any]:
        """Cached values by arguments."""
        values: dict[tuple[Any, ...], Any] = self.instance._session.values_of(self.formula)
        return values

    @property
    def df(self) -> Any:
        """The cached values as a DataFrame with a column for each parameter and one for the value."""
        import pandas as pd  # noqa: PLC0415 - this floor evaluates formulas without pandas

        rows = [(*key, value) for key, value in self.cache.items()]
        return pd.DataFrame(rows, columns=[*self.formula.params, self.formula.name])


class CallStack:
    """The formula calls that are being evaluated, innermost last, with cycle detection."""

    def __init__(self) -> None:
        self.frames: list[tuple[Formula, tuple[Any, ...]]] = []
        self.active: set[tuple[Formula, tuple[Any, ...]]] = set()

    def push(self, formula: Formula, key: tuple[Any, ...]) -> None:
        """Enter a call; raises CycleError when it is already being evaluated."""
        frame = (formula, key)
        if frame in self.active:
            raise self._cycle(frame)
        if len(self.frames) >= MAX_DEPTH:
            raise self._endless()
        self.active.add(frame)
        self.frames.append(frame)

    def pop(self) -> None:
        """Leave the innermost call."""
        self.active.discard(self.frames.pop())

    def _cycle(self, frame: tuple[Formula, tuple[Any, ...]]) -> CycleError:
        cycle = [*self.frames[self.frames.index(frame) :], frame]
        shown = cycle if len(cycle) <= 12 else [*cycle[:10], *cycle[-1:]]
        return CycleError(
            f"{call_text(frame[0].name, frame[1])} needs its own value: "
            + " -> ".join(call_text(f.name, k) for f, k in shown),
            formula=call_text(frame[0].name, frame[1]),
            remedy="give the recursion a starting point, or refer to another time step",
        )

    def _endless(self) -> CycleError:
        tail = self.frames[-12:]
        return CycleError(
            f"the recursion is {MAX_DEPTH:,} calls deep and does not end: ... "
            + " -> ".join(call_text(f.name, k) for f, k in tail),
            formula=call_text(tail[-1][0].name, tail[-1][1]),
            remedy="give the recursion a starting point (if t == 0: return ...)",
        )


_THREAD = threading.local()


def current_stack(session: Any) -> CallStack:
    """The call stack of a session on this thread."""
    stacks = _THREAD.__dict__.setdefault("stacks", {})
    stack: CallStack = stacks.get(id(session)) or stacks.setdefault(id(session), CallStack())
    return stack


def on_fresh_stack(evaluate: Callable[[], Any]) -> Any:
    """Evaluate on a new thread with an empty stack, wait for it, and give back or raise its outcome."""
    context = contextvars.copy_context()
    stacks = _THREAD.__dict__.setdefault("stacks", {})
    outcome: list[Any] = []

    def work() -> None:
        _THREAD.stacks = stacks
        try:
            outcome.append((True, context.run(evaluate)))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=work, name="hl_dask-deep", daemon=True)
    thread.start()
    thread.join()
    done, value = outcome[0]
    if done:
        return value
    raise value


class PlainSession:
    """Memoised evaluation in memory: what a model does outside a recording."""

    running = False
    """Whether a run is on; a single call from outside counts by its call stack."""
    setting_up = False
    """Whether attributes are written as part of a run, which must not end it."""
    data: Any = None

    def __init__(self) -> None:
        self.memo: dict[Formula, dict[tuple[Any, ...], Any]] = {}

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Cached values of a formula by arguments."""
        return self.memo.get(formula, {})

    def refuses_writes(self) -> bool:
        """Whether a formula is being evaluated, so that attributes must not change."""
        return bool(current_stack(self).frames)

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula, from the memo or evaluated."""
        key = args if not kwargs and len(args) == formula.arity else bind_key(formula, args, kwargs)
        memo = self.memo.get(formula)
        if memo is None:
            memo = self.memo.setdefault(formula, {})
        try:
            return memo[key]
        except KeyError:
            pass
        except TypeError as error:
            raise unhashable(formula, key) from error
        return self.evaluate(formula, instance, key, memo)

    def evaluate(
        self, formula: Formula, instance: Any, key: tuple[Any, ...], memo: dict[Any, Any]
    ) -> Any:
        """Evaluate a formula and memoise the value."""
        stack = current_stack(self)
        stack.push(formula, key)
        try:
            if len(stack.frames) % HOP == 0:
                value = on_fresh_stack(lambda: formula.evaluate(instance, key))
            else:
                value = formula.evaluate(instance, key)
        except HlDaskError as error:
            text = call_text(formula.name, key)
            error.formula = error.formula or text
            error.called_by(text)
            raise
        except Exception as error:
            raise formula_error(formula, key, error, self.memo) from error
        finally:
            stack.pop()
        value = read_only(value)
        memo[key] = value
        return value


def bind_key(formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Canonical arguments, or an error that names the formula and its parameters."""
    try:
        return formula.bind(args, kwargs)
    except TypeError as error:
        msg = f"{formula.name} takes the arguments ({', '.join(formula.params)}): {error}"
        raise ModelError(
            msg,
            formula=call_text(formula.name, args),
            remedy="call it with these arguments",
        ) from error


def unhashable(formula: Formula, key: tuple[Any, ...]) -> ModelError:
    """The error for an argument that cannot be a key of the memo."""
    bad = next(
        (a for a in key if getattr(type(a), "__hash__", None) is None or hasattr(a, "shape")), key
    )
    return ModelError(
        f"arguments of a formula must be numbers, texts or other hashable values, got {type(bad).__name__}",
        formula=formula.name,
        remedy="call the formula with t or another key, and let it read arrays from formulas and columns",
    )


def read_only(value: Any) -> Any:
    """The value with writing switched off, so that nobody changes a cached value by accident."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        # A view, because the array may be an attribute that the user owns.
        value = value.view()
        value.setflags(write=False)
    return value


def formula_error(
    formula: Formula,
    key: tuple[Any, ...],
    error: BaseException,
    memo: dict[Formula, dict[Any, Any]],
) -> FormulaError:
    """An exception in a formula: with its arguments and the shapes of what it works with."""
    shapes = [f"{name} {shape}" for name, shape in _local_shapes(formula, error)]
    names = (
        set(formula.function.__code__.co_names) if hasattr(formula.function, "__code__") else set()
    )
    for other, values in memo.items():
        if other.name in names and values and other is not formula:
            last, value = next(reversed(values.items()))
            if hasattr(value, "shape"):
                shapes.append(f"{call_text(other.name, last)} {np.shape(value)}")
    text = f"{type(error).__name__}: {error}"
    if shapes:
        text += f"\n  shapes: {', '.join(shapes[:12])}"
    return FormulaError(
        text,
        formula=call_text(formula.name, key),
        remedy="see the exception above, which the formula raised",
    )


def _local_shapes(formula: Formula, error: BaseException) -> Iterable[tuple[str, Any]]:
    code = getattr(formula.function, "__code__", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            for name, value in trace.tb_frame.f_locals.items():
                if isinstance(value, np.ndarray):
                    yield name, tuple(np.shape(value))
        trace = trace.tb_next
