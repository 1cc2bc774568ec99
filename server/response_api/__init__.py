"""OpenAI's Responses API, over the same plans and readers as chat completions; nothing is stored."""
