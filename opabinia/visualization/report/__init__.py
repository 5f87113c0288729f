"""The HTML report of runs: one self-contained file. Reads run folders only, and does not trust their content."""

from opabinia.visualization.report.comparison import compared_runs as compared_runs
from opabinia.visualization.report.comparison import comparison_rows as comparison_rows
from opabinia.visualization.report.page import default_path as default_path
from opabinia.visualization.report.page import write_report as write_report
