"""Translation of other systems' weights. Importing this registers the formats for ``init``."""

from opabinia.migration.weights import detection as detection
from opabinia.migration.weights import selfsup as selfsup
