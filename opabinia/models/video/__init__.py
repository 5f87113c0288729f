"""Networks for clips: B x C x T x H x W to one vector each."""

from opabinia.models.video.resnets3d import resnet3d as resnet3d
from opabinia.models.video.resnets3d import slow as slow
from opabinia.models.video.slowfast import slowfast as slowfast
from opabinia.models.video.torchvision_nets import torchvision_video as torchvision_video
from opabinia.models.video.tsn import tsn as tsn
from opabinia.models.video.x3d import x3d as x3d
