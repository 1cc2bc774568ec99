"""Prometheus metrics, named as vLLM names them."""
