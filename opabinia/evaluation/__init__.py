"""Evaluators: accumulators over predictions. They know no model and no loader."""
