"""Tasks: what a batch means. Each defines losses, predictions, features and evaluators, in this order."""
