"""From a prepared request to its response: the sequences it opens, and what comes back of them, whole or as events."""
