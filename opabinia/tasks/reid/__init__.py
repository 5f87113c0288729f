"""Re-identification and retrieval: images become vectors, and those of one identity lie near each other."""

from opabinia.tasks.reid import baseline as baseline
from opabinia.tasks.reid import cross_batch_memory as cross_batch_memory
from opabinia.tasks.reid import mgn as mgn
