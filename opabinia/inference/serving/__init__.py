"""An HTTP server for predictions, with a page for browsers."""
