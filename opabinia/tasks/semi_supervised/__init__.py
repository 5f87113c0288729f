"""Semi-supervised training: a task around any task, and pseudo-labels of classes, pixels, boxes and identities."""

from opabinia.tasks.semi_supervised import boxes as boxes
from opabinia.tasks.semi_supervised import classes as classes
from opabinia.tasks.semi_supervised import identities as identities
from opabinia.tasks.semi_supervised import pixels as pixels
