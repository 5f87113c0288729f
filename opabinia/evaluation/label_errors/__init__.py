"""Suspicious labels: scores of annotations by the predictions of a model that was not trained on them, one module for
each kind of task. The scores are pure functions over arrays."""
