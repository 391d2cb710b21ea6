"""How to work with the term assurance model: look, record, run large, change something.

The model is `hl_dask.demo.TermAssurance`; README.md explains its formulas. Run as a script, this
writes 200,000 random policies to a temporary directory and projects them::

    python examples/term_assurance/model.py
"""

import tempfile
from pathlib import Path

import hl_dask as hl
from hl_dask.demo import MONTHS, TermAssurance, assumptions, write_portfolio

LAST_MONTH = MONTHS - 1


class MassLapse(TermAssurance):
    """Two policies in five lapse in the first month; everything else is as before."""

    @hl.agg(None)
    def lapse_rate_mth(self, t):
        return 0.4 if t == 0 else super().lapse_rate_mth(t)


def main() -> None:
    """Inspect one month of three policies, then run both scenarios over Parquet files."""
    with tempfile.TemporaryDirectory(prefix="hl-dask-example-") as folder:
        write_portfolio(Path(folder), rows=200_000)
        policies = f"{folder}/*.parquet"

        model = TermAssurance(data=policies, **assumptions())
        model.GenerateActions(proj_len=LAST_MONTH)
        print(model.plan)

        result = model.ExecuteActions(memory="1GB")
        print(result.by_year(default="sum").to_string(float_format="{:,.0f}".format))

        stressed = MassLapse(data=policies, **assumptions())
        stressed_result = stressed.ExecuteActions(proj_len=LAST_MONTH, memory="1GB")
        print(f"present value: {result.values['pv_net_cf']:,.2f}")
        print(f"  after a mass lapse: {stressed_result.values['pv_net_cf']:,.2f}")


if __name__ == "__main__":
    main()
