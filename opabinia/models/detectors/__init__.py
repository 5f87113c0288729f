"""Detectors: feature maps of a backbone to bounding boxes, instance masks and keypoints."""

from opabinia.models.detectors.d_fine import DFine as DFine
from opabinia.models.detectors.fcos import Fcos as Fcos
from opabinia.models.detectors.library_detectors import deformable_detr as deformable_detr
from opabinia.models.detectors.library_detectors import detr as detr
from opabinia.models.detectors.library_detectors import rf_detr as rf_detr
from opabinia.models.detectors.rcnn import cascade_rcnn as cascade_rcnn
from opabinia.models.detectors.rcnn import faster_rcnn as faster_rcnn
from opabinia.models.detectors.rcnn import keypoint_rcnn as keypoint_rcnn
from opabinia.models.detectors.rcnn import mask_rcnn as mask_rcnn
from opabinia.models.detectors.retinanet import RetinaNet as RetinaNet
from opabinia.models.detectors.rotated_fcos import RotatedFcos as RotatedFcos
from opabinia.models.detectors.rt_detr import RTDetr as RTDetr
