"""Semi-supervised training: a task around any task, and pseudo-labels of classes, pixels and boxes."""

from opabinia.tasks.semi_supervised import boxes as boxes
from opabinia.tasks.semi_supervised import classes as classes
from opabinia.tasks.semi_supervised import pixels as pixels
