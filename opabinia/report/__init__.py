"""The report of runs: one HTML file that needs nothing beside it. Reads run folders only, and does not trust them."""

from opabinia.report.folder import NoRun as NoRun
from opabinia.report.page import default_place as default_place
from opabinia.report.page import refuse_what_is_no_run as refuse_what_is_no_run
from opabinia.report.page import write_report as write_report
