"""The zoo: small models, each with a right answer in plain NumPy.

``ZOO`` maps the name of an entry to the entry; see ``tests.reference.Entry``.
"""

from __future__ import annotations

from tests.reference import Entry
from tests.zoo_life import LIFE
from tests.zoo_values import VALUES

ZOO: dict[str, Entry] = {**LIFE.entries, **VALUES.entries}
