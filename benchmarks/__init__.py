"""Benchmarks of hl_dask: ``python -m benchmarks --help``, from the root of the repository.

Every engine runs in a fresh process of its own, so that neither caches nor memory carry over.
They need the ``bench`` extra.
"""
