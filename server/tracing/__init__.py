"""Spans of requests, for those who trace across services."""
