"""Tool calls: how a model family writes them, read as they are generated, and grammars that make a model write them."""
