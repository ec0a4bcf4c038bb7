"""Benchmarks: whole processes against a floor that is measured in the same run, alternating, medians and ratios."""
