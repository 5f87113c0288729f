"""Self-supervised learning: a file for each method."""

from opabinia.tasks.selfsup import simclr as simclr
