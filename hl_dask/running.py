"""Running totals over time: present values and accounts, in a line."""

from __future__ import annotations

import linecache
import types
from typing import Any

from hl_dask.errors import ModelError

DIRECTIONS = (None, "forward", "backward")


class RunningTotal:
    """The sum of a formula over time, perhaps weighted, for each policy.

    In the body of a model, ``pv_net_cf = hl.RunningTotal("net_cf", weight="disc_factor",
    to_t="months")`` is the formula ::

        def pv_net_cf(self):
            return sum(self.net_cf(t) * self.disc_factor(t) for t in range(0, self.months + 1))

    and takes one array for each policy, however many months there are: what is added is let go as
    the projection goes on.

    Parameters
    ----------
    formula : str
        Name of a formula of t.
    weight : str, optional
        Name of a formula of t by which it is multiplied, such as a discount factor.
    from_t : int or str
        The first time step, or the attribute that has it.
    to_t : int or str
        The last time step, which counts, or the attribute that has it. ``"forward"`` needs none.
    direction : str, optional
        By default the formula has no arguments. ``"forward"``: a formula of t, the sum up to and
        with t. ``"backward"``: a formula of t, the sum from t on.

    Raises
    ------
    ModelError
        When a name is none, or the last time step is missing.
    """

    def __init__(
        self,
        formula: str,
        *,
        weight: str | None = None,
        from_t: int | str = 0,
        to_t: int | str | None = None,
        direction: str | None = None,
    ) -> None:
        names: list[tuple[str, Any]] = [("formula", formula), ("weight", weight or "w")]
        for what, name in names:
            if not isinstance(name, str) or not name.isidentifier():
                msg = f"the {what} of a running total is given as {name!r}"
                raise ModelError(msg, remedy="give the name of a formula of t, in quotes")
        if direction not in DIRECTIONS:
            msg = f"direction={direction!r} is not known"
            raise ModelError(msg, remedy='leave it out, or give "forward" or "backward"')
        if to_t is None and direction != "forward":
            msg = f"the running total of {formula} has no last time step"
            raise ModelError(
                msg, remedy='give to_t=, a number or the name of an attribute: "months"'
            )
        self.formula, self.weight, self.direction = formula, weight, direction
        self.from_t, self.to_t = _text(from_t), _text(to_t)

    def source(self, name: str) -> str:
        """The formula as it would be written."""
        term = f"self.{self.formula}(t)" + (f" * self.{self.weight}(t)" if self.weight else "")
        if self.direction is None:
            return (
                f"def {name}(self):\n"
                f"    return sum({term} for t in range({self.from_t}, {self.to_t} + 1))\n"
            )
        first, next_t = (
            (self.from_t, "t - 1") if self.direction == "forward" else (self.to_t, "t + 1")
        )
        beyond = "<" if self.direction == "forward" else ">"
        return (
            f"def {name}(self, t):\n"
            f"    if t {beyond} {first}:\n"
            f"        return 0.0\n"
            f"    if t == {first}:\n"
            f"        return {term}\n"
            f"    return {term} + self.{name}({next_t})\n"
        )

    def function(self, name: str, owner: str) -> types.FunctionType:
        """The formula as a function, with a source that can be looked at."""
        text = self.source(name)
        file = f"<hl.RunningTotal {owner}.{name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace: dict[str, Any] = {}
        exec(compile(text, file, "exec"), namespace)
        made: types.FunctionType = namespace[name]
        made.__doc__ = f"Running total of {self.formula}."
        for mark, value in vars(self).items():
            if mark.startswith("_hl_"):
                setattr(made, mark, value)
        return made


def _text(step: int | str | None) -> str:
    if isinstance(step, str):
        if not step.isidentifier():
            msg = f"a time step of a running total is given as {step!r}"
            raise ModelError(msg, remedy="give a number, or the name of an attribute")
        return f"self.{step}"
    return repr(step)
