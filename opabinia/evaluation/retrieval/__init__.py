"""Retrieval and re-identification: distances, ranking, re-ranking, verification, and their evaluators."""
