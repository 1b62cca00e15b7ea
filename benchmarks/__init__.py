"""Measurements of awa-queue and its peers: `python -m benchmarks`."""
