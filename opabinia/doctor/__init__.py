"""The data doctor: what data sets hold, what is wrong with them, and a page that shows it."""

from opabinia.doctor.checkup import NEAR as NEAR
from opabinia.doctor.checkup import Checkup as Checkup
from opabinia.doctor.checkup import check_up as check_up
from opabinia.doctor.parts import pictures_of_classes as pictures_of_classes
