"""Translation of other systems' weights. Importing this registers the formats for ``init``."""

from opabinia.migration.weights import detection as detection
from opabinia.migration.weights import mmdetection as mmdetection
from opabinia.migration.weights import reid as reid
from opabinia.migration.weights import selfsup as selfsup
from opabinia.migration.weights import transformers as transformers
from opabinia.migration.weights import video as video
