"""The report of runs: one HTML file that needs nothing beside it. Reads run folders only, and does not trust them."""

from opabinia.visualization.report.page import check_run_folders as check_run_folders
from opabinia.visualization.report.page import default_place as default_place
from opabinia.visualization.report.page import write_report as write_report
from opabinia.visualization.report.run_data import NoRun as NoRun
