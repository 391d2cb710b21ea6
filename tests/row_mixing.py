"""All cases of row mixing; see ``tests.row_mixing_case`` for what a case is."""

from __future__ import annotations

from tests.row_mixing_case import Case
from tests.row_mixing_declared import DECLARED
from tests.row_mixing_leaks import LEAKS
from tests.row_mixing_order import ORDER
from tests.row_mixing_shapes import SHAPES

UNDECLARED_CASES: dict[str, Case] = {**ORDER.cases, **LEAKS.cases, **SHAPES.cases}
DECLARED_CASES: dict[str, Case] = DECLARED.cases
CASES: dict[str, Case] = {**UNDECLARED_CASES, **DECLARED_CASES}
