"""The engine: it turns the crank. It builds nothing, reads no config and knows no task."""
