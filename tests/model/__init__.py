"""Tests with torch and tiny random models."""
