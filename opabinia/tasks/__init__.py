"""Tasks: each says what a batch means, with the same four methods in the same order."""
