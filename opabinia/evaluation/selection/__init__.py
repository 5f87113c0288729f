"""Active learning: the uncertainty of predictions, and the choice of the samples to label next. Pure functions."""
