"""Holdfast beside the least that could work: `python -m bench` (or `scripts/bench`) prints one table."""
