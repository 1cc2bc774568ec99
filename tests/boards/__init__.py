"""Grafana's dashboards, declared: `python -m tests.boards` writes them into deploy/grafana/dashboards/."""
