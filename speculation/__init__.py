"""Speculation rank: request queue, pipeline schedule, drafters and every decision."""
