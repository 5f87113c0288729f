"""The work of ``opabinia data labels``: predictions of runs, suspicious labels, the list and the page."""
