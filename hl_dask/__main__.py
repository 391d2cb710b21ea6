"""``python -m hl_dask`` is the command line ``hl-dask``."""

from hl_dask.cli import main

if __name__ == "__main__":
    main(prog_name="hl-dask")
