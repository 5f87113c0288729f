"""The data doctor: what data sets hold, what is wrong with them, and a page that shows it."""

from opabinia.data.check.checks import NEAR as NEAR
from opabinia.data.check.checks import Checkup as Checkup
from opabinia.data.check.checks import check_up as check_up
from opabinia.data.check.datasets import pictures_of_classes as pictures_of_classes
