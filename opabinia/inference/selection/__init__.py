"""The work of ``opabinia data select``: which unlabeled images to label next."""
