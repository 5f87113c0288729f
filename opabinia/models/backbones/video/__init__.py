"""Clip backbones: B x C x T x H x W to one vector each."""

from opabinia.models.backbones.video.mvit import Mvit as Mvit
from opabinia.models.backbones.video.resnet3d import c2d as c2d
from opabinia.models.backbones.video.resnet3d import i3d as i3d
from opabinia.models.backbones.video.resnet3d import resnet3d as resnet3d
from opabinia.models.backbones.video.resnet3d import slow as slow
from opabinia.models.backbones.video.slowfast import SlowFast as SlowFast
from opabinia.models.backbones.video.timesformer import TimeSformer as TimeSformer
from opabinia.models.backbones.video.torchvision_video import TorchvisionVideo as TorchvisionVideo
from opabinia.models.backbones.video.tsn import Tsn as Tsn
from opabinia.models.backbones.video.x3d import X3d as X3d
