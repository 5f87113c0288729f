"""Re-identification and retrieval: images become vectors, and those of one identity lie near each other."""

from opabinia.tasks.reid import baseline as baseline
from opabinia.tasks.reid import memory as memory
from opabinia.tasks.reid import mgn as mgn
