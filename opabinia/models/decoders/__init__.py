"""Decoders: feature maps of a backbone to logits of each pixel."""

from opabinia.models.decoders.deeplab import DeepLabV3Plus as DeepLabV3Plus
from opabinia.models.decoders.mask2former import Mask2Former as Mask2Former
from opabinia.models.decoders.pixel_decoders import Fcn as Fcn
from opabinia.models.decoders.pixel_decoders import Linear as Linear
from opabinia.models.decoders.pixel_decoders import SegFormer as SegFormer
from opabinia.models.decoders.pyramids import SemanticFpn as SemanticFpn
from opabinia.models.decoders.pyramids import UPerNet as UPerNet
