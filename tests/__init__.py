"""The tests of hl_dask."""
