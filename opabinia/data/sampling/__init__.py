"""Which samples form which batch: permutations of an epoch, samplers, and batch shapes over time."""
