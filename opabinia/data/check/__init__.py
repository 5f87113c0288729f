"""Checks of datasets before training (``opabinia data check``): statistics, errors, duplicates, leaks.

``checks`` runs them, ``terminal`` and ``page`` show the report."""

from opabinia.data.check.checks import DataReport as DataReport
from opabinia.data.check.checks import run_checks as run_checks
from opabinia.data.check.datasets import count_per_class as count_per_class
