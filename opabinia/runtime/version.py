"""The version of the package; pyproject.toml has the same (tests/test_setup.py compares them)."""

__version__ = "0.1.0"
