"""Losses: pure functions of predictions and targets, independent of models and tasks."""
