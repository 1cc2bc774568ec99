"""What a cycle costs beside the stages: `python -m speculation.bench.cycle_cost`."""
