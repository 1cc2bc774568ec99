"""Measurements that are run by hand; their results are in docs/."""
