"""The composition root: the one place where parts come together and where the order of construction matters.

The parameters of :func:`train` are the top level of a config. Importing this package registers every built-in part.
"""

from opabinia.run.parts import PARTS as PARTS
from opabinia.run.rehearsal import rehearse as rehearse
from opabinia.run.trained import evaluate as evaluate
from opabinia.run.trained import facts_from as facts_from
from opabinia.run.trained import predictor as predictor
from opabinia.run.trained import trained_task as trained_task
from opabinia.run.training import Session as Session
from opabinia.run.training import train as train
