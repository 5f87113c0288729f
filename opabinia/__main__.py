"""``python -m opabinia`` is the same program as ``opabinia``."""

from opabinia.cli import main

if __name__ == "__main__":
    main()
