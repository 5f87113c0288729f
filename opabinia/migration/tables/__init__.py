"""Tables for every system: defaults, reasons why keys are not converted, and equivalents of names."""
