"""From a request body to the sequences the engine is to generate: template, prompt, tools, sampling, limits."""
