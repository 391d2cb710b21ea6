"""Plain evaluation: formulas with a memo, as a model does outside a recording.

Deep recursion. ``pols_if(5000)``, cold, nests tens of thousands of Python calls. Raising the
recursion limit would change the user's interpreter and may still overflow the C stack, so every
:data:`HOP` nested formula calls the next one is evaluated on a new thread, whose stack is empty,
while the caller waits. Only one of the threads runs at a time, and they share one call stack of
formulas.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hl_dask.dataview import DataView
from hl_dask.errors import CycleError, FormulaError, HlDaskError
from hl_dask.formula import Formula, bind_key, call_text, unhashable

HOP = 60
"""Nested formula calls on one thread; with helpers and generators they stay far below 1,000
frames."""
MAX_DEPTH = 100_000
"""Nested formula calls after which a recursion is taken to be endless."""


class CallStack:
    """The formula calls that are being evaluated, innermost last, with cycle detection."""

    def __init__(self) -> None:
        self.frames: list[tuple[Formula, tuple[Any, ...]]] = []
        self.active: set[tuple[Formula, tuple[Any, ...]]] = set()
        self.interrupted = False

    def push(self, formula: Formula, key: tuple[Any, ...]) -> None:
        """Enter a call; raises CycleError when it is already being evaluated."""
        if self.interrupted:
            raise KeyboardInterrupt
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


def _stacks() -> WeakKeyDictionary[Any, CallStack]:
    """The call stacks of this thread by session."""
    found: WeakKeyDictionary[Any, CallStack] | None = getattr(_THREAD, "stacks", None)
    if found is None:
        found = _THREAD.stacks = WeakKeyDictionary()
    return found


def current_stack(session: Any) -> CallStack:
    """The call stack of a session on this thread."""
    stacks = _stacks()
    stack = stacks.get(session)
    if stack is None:
        stack = stacks[session] = CallStack()
    return stack


def on_fresh_stack(evaluate: Callable[[], Any], stack: CallStack) -> Any:
    """Evaluate on a new thread with an empty stack, and give back or raise what comes out of it.

    Parameters
    ----------
    evaluate : callable
        What is to be done; this thread waits for it.
    stack : CallStack
        The formula calls that it belongs to.
    """
    context = contextvars.copy_context()
    stacks = _stacks()
    outcome: list[Any] = []
    done = threading.Event()
    turn = threading.Lock()
    begun = cancelled = False

    def work() -> None:
        nonlocal begun
        with turn:
            if cancelled:
                return
            begun = True
        _THREAD.stacks = stacks
        try:
            outcome.append((True, context.run(evaluate)))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            done.set()

    try:
        threading.Thread(target=work, name="hl_dask-deep", daemon=True).start()
        # Not Thread.join: interrupted once, it takes the thread to have ended (Python 3.11, 3.12).
        done.wait()
    except BaseException:
        # Ctrl-C reaches the main thread, which waits here (or is still starting the other one). The
        # other one stops at its next formula call; were it left to itself, it would go on with a
        # call stack that is unwound here.
        with turn:
            cancelled = True
        if begun:
            stack.interrupted = True
            _wait_whatever_comes(done)
            stack.interrupted = False
        raise
    succeeded, value = outcome[0]
    if succeeded:
        return value
    raise value


def _wait_whatever_comes(done: threading.Event) -> None:
    """Wait for an event through further interrupts."""
    while not done.is_set():
        with contextlib.suppress(KeyboardInterrupt):
            done.wait()


class PlainSession:
    """Memoised evaluation in memory: what a model does outside a recording."""

    running = False
    """Whether a run is on; a single call from outside counts by its call stack."""
    setting_up = False
    """Whether attributes are written as part of a run, which must not end it."""
    data: Any = None

    def __init__(self) -> None:
        self.memo: dict[Formula, dict[tuple[Any, ...], Any]] = {}

    def call_stack(self) -> CallStack:
        """The formula calls that are being evaluated on this thread."""
        return current_stack(self)

    def has_rows(self, value: Any) -> bool:
        """Whether a value has an entry for each policy."""
        rows = len(self.data) if isinstance(self.data, DataView) else 0
        return np.ndim(value) > 0 and np.shape(value)[0] == rows

    def received(self, value: Any) -> Any:
        """A value without rows of a formula of another model."""
        return value

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
                value = on_fresh_stack(lambda: formula.evaluate(instance, key), stack)
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
