"""Re-identification and metric learning: images become vectors, and images of one identity lie near each other."""

from opabinia.tasks.reid import baseline as baseline
from opabinia.tasks.reid import cross_batch_memory as cross_batch_memory
from opabinia.tasks.reid import mgn as mgn
