"""Drawing on images and the HTML report. Nothing here runs a model."""
