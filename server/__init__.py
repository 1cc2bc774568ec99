"""API server and launcher: everything a client or an operator touches. Never imports torch."""
