"""Finding the nearest images of a gallery, in memory or in an index on disk."""
