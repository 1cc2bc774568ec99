"""From what a request asks of its answer to one grammar, compiled before the engine sees it."""
