"""Self-supervised learning: a file for each method."""

from opabinia.tasks.selfsup import barlow_twins as barlow_twins
from opabinia.tasks.selfsup import byol as byol
from opabinia.tasks.selfsup import deepcluster as deepcluster
from opabinia.tasks.selfsup import dino as dino
from opabinia.tasks.selfsup import distillation as distillation
from opabinia.tasks.selfsup import ibot as ibot
from opabinia.tasks.selfsup import jigsaw as jigsaw
from opabinia.tasks.selfsup import mae as mae
from opabinia.tasks.selfsup import moco as moco
from opabinia.tasks.selfsup import moco_v3 as moco_v3
from opabinia.tasks.selfsup import npid as npid
from opabinia.tasks.selfsup import pirl as pirl
from opabinia.tasks.selfsup import rotation as rotation
from opabinia.tasks.selfsup import simclr as simclr
from opabinia.tasks.selfsup import simsiam as simsiam
from opabinia.tasks.selfsup import swav as swav
from opabinia.tasks.selfsup import vicreg as vicreg
