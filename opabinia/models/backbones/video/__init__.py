"""Networks for clips: B x C x T x H x W to one vector each."""

from opabinia.models.backbones.video.resnet3d import resnet3d as resnet3d
from opabinia.models.backbones.video.resnet3d import slow as slow
from opabinia.models.backbones.video.slowfast import slowfast as slowfast
from opabinia.models.backbones.video.torchvision_video import torchvision_video as torchvision_video
from opabinia.models.backbones.video.tsn import tsn as tsn
from opabinia.models.backbones.video.x3d import x3d as x3d
