"""Random models in which totals over all policies feed what comes next, as source code.

A model is a class of formulas of t. Each formula is an expression over columns, its own value a
month before, formulas defined above at the same t or up to two months before, formulas with a
second argument, and totals of any of these: sums, means, largest values, ratios of sums, totals by
group and totals over all models of a portfolio, some of them turned into Python numbers or
conditions. One formula goes backwards, from its value a month after.
"""

from __future__ import annotations

import random

COLUMNS = ("a", "b", "k")
TOTALS = ("{}.sum()", "{}.mean()", "{}.max()", "{}.min()", "np.sum({})", "{}.std()")
LAST = 5


class Writer:
    """Writes the models of a portfolio, or one model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.classes = ("First", "Second") if seed % 2 else ("First",)
        self.names: list[str] = []
        self.has_more = False

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def before(self) -> str:
        return self.pick("t - 1", "t - 2")

    def row(self, depth: int = 0) -> str:
        """An expression with a value for each policy."""
        choice = self.rng.random()
        if depth > 2 or choice < 0.2:
            return f'self.data["{self.pick(*COLUMNS)}"]'
        if choice < 0.4 and self.names:
            name = self.pick(*self.names)
            return f"self.{name}({self.pick('t', 't - 1', 't - 2')})"
        if choice < 0.48 and self.has_more:
            return f"self.more({self.pick('t', 't - 1')}, {self.pick('0', '1', 'side=2')})"
        if choice < 0.6:
            return f"({self.row(depth + 1)} * {self.total(depth + 1)})"
        if choice < 0.68:
            left, right = self.row(depth + 1), self.row(depth + 1)
            return f"np.where({left} > {self.total(depth + 1)}, {left}, {right} * 0.5)"
        if choice < 0.76:
            group = self.pick('"g"', 'self.data["g"]')
            return f"np.tanh(hl.total_by({group}, {self.row(depth + 1)}) * 1e-3)"
        if choice < 0.82:
            return f'np.tanh(self.portfolio.total_by("g", "f0", {self.before()}) * 1e-3)'
        operation = self.pick("+", "-", "*")
        return f"np.tanh({self.row(depth + 1)} {operation} {self.row(depth + 1)})"

    def total(self, depth: int) -> str:
        """An expression with one value for all policies, of moderate size."""
        choice = self.rng.random()
        value = self.row(depth + 1)
        if choice < 0.45:
            return f"np.tanh({self.pick(*TOTALS).format(value)} * 1e-3)"
        if choice < 0.6:
            return f"(({value}).sum() / (1.0 + np.abs({self.row(depth + 1)}).sum()))"
        if choice < 0.7:
            return f'np.tanh(self.portfolio.total("f0", {self.before()}) * 1e-3)'
        if choice < 0.8:
            other = self.pick(*self.classes)
            return f'self.portfolio["{other}"].level({self.before()})'
        if choice < 0.9:
            return f"float(np.round(np.tanh(({value}).mean()), 3))"
        return f"(0.5 if ({value}).sum() > 0.1 else 0.25)"

    def source(self) -> str:
        """The classes."""
        return "\n\n".join(self._class(name) for name in self.classes)

    def _class(self, cls: str) -> str:
        self.names, self.has_more = [], False
        lines = [f"class {cls}(hl.Model):"]
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
            if k == 0:
                lines += [
                    "    @hl.agg(None)",
                    "    def more(self, t, side=0):",
                    f"        return np.tanh(self.f0(t) * (side + 1) + {self.row(2)})",
                    "    def level(self, t):",
                    "        return np.tanh(self.f0(t).mean())",
                ]
                self.has_more = True
        lines += [
            "    def back(self, t):",
            f"        if t >= {LAST}:",
            f"            return self.f0({LAST}) * 1.0",
            "        ahead = self.back(t + 1)",
            f"        near = np.tanh({self.pick(*TOTALS).format('ahead')} * 1e-2)",
            f"        return np.tanh(ahead * 0.7 + {self.row(1)} * 0.3 + near)",
            "    def pv(self):",
            "        return sum(self.f0(t) * 0.9**t for t in range(4))",
        ]
        return "\n".join(lines) + "\n"
