"""Measures Tensorway and its peers on one machine, in one run; docs/performance.md."""
