"""Losses: pure functions of predictions and targets. They know no model and no task."""
