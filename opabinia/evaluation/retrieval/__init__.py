"""Retrieval and re-identification: distances, ranking, re-ranking, and the evaluators built on them."""
