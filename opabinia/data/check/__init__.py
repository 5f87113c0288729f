"""The data doctor: what data sets hold, what is wrong with them, and a page that shows it."""

from opabinia.data.check.checks import NEAR as NEAR
from opabinia.data.check.checks import DataReport as DataReport
from opabinia.data.check.checks import run_checks as run_checks
from opabinia.data.check.datasets import pictures_of_classes as pictures_of_classes
