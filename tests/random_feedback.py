"""Random models in which totals over all policies feed what comes next, as source code.

A model is a class of formulas of t. Each formula is an expression over columns, its own value a
month before, formulas defined above at the same t or up to two months before, and totals of any of
these: sums, means, largest values, ratios of sums, some of them turned into Python numbers or
conditions.
"""

from __future__ import annotations

import random

COLUMNS = ("a", "b", "k")
TOTALS = ("{}.sum()", "{}.mean()", "{}.max()", "{}.min()", "np.sum({})", "{}.std()")


class Writer:
    """Writes one model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: list[str] = []

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def row(self, depth: int = 0) -> str:
        """An expression with a value for each policy."""
        choice = self.rng.random()
        if depth > 2 or choice < 0.25:
            return f'self.data["{self.pick(*COLUMNS)}"]'
        if choice < 0.5 and self.names:
            name = self.pick(*self.names)
            return f"self.{name}({self.pick('t', 't - 1', 't - 2')})"
        if choice < 0.65:
            return f"({self.row(depth + 1)} * {self.total(depth + 1)})"
        if choice < 0.75:
            left, right = self.row(depth + 1), self.row(depth + 1)
            return f"np.where({left} > {self.total(depth + 1)}, {left}, {right} * 0.5)"
        operation = self.pick("+", "-", "*")
        return f"np.tanh({self.row(depth + 1)} {operation} {self.row(depth + 1)})"

    def total(self, depth: int) -> str:
        """An expression with one value for all policies, of moderate size."""
        choice = self.rng.random()
        value = self.row(depth + 1)
        if choice < 0.6:
            return f"np.tanh({self.pick(*TOTALS).format(value)} * 1e-3)"
        if choice < 0.8:
            return f"(({value}).sum() / (1.0 + np.abs({self.row(depth + 1)}).sum()))"
        if choice < 0.9:
            return f"float(np.round(np.tanh(({value}).mean()), 3))"
        return f"(0.5 if ({value}).sum() > 0.1 else 0.25)"

    def source(self) -> str:
        """The class."""
        lines = ["class Random(hl.Model):"]
        for k in range(self.rng.randint(2, 4)):
            name = f"f{k}"
            first = self.row()
            again = self.row()
            own = self.pick(f"self.{name}(t - 1)", f"0.5 * self.{name}(t - 1) + 0.1")
            lines += [
                f"    def {name}(self, t):",
                "        if t <= 0:",
                f'            return self.data["{self.pick(*COLUMNS)}"] * 1.0',
                f"        return np.tanh({own} * 0.7 + {first} * 0.3 + {again} * 0.1)",
            ]
            self.names.append(name)
        lines += ["    def pv(self):", "        return sum(self.f0(t) * 0.9**t for t in range(4))"]
        return "\n".join(lines) + "\n"
