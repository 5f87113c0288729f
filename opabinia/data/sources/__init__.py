"""Sources: datasets and formats. A source returns a sample by its index, whatever was read before.

Shared by several formats: ``*_base``, ``folder``, ``in_memory``, ``list_files``, ``labels``, ``annotation_arrays``,
``annotation_errors``, ``annotation_values``.
"""

from opabinia.data.sources.annotation_tools import cvat as cvat
from opabinia.data.sources.annotation_tools import labelme as labelme
from opabinia.data.sources.coco import coco as coco
from opabinia.data.sources.coco import roboflow as roboflow
from opabinia.data.sources.coco_panoptic import coco_panoptic as coco_panoptic
from opabinia.data.sources.concat import Concat as Concat
from opabinia.data.sources.concat import ConcatIdentities as ConcatIdentities
from opabinia.data.sources.cuhk03_archive import Cuhk03Archive as Cuhk03Archive
from opabinia.data.sources.digit_scenes import DigitScenes as DigitScenes
from opabinia.data.sources.digit_tracks import DigitTrackCrops as DigitTrackCrops
from opabinia.data.sources.digit_tracks import DigitTracks as DigitTracks
from opabinia.data.sources.digit_views import DigitViews as DigitViews
from opabinia.data.sources.digits import Digits as Digits
from opabinia.data.sources.dota import dota as dota
from opabinia.data.sources.folder import ImageFolder as ImageFolder
from opabinia.data.sources.folder import Images as Images
from opabinia.data.sources.hugging_face import HuggingFace as HuggingFace
from opabinia.data.sources.identity_datasets import class_folders as class_folders
from opabinia.data.sources.identity_datasets import cuhk03 as cuhk03
from opabinia.data.sources.identity_datasets import dukemtmc as dukemtmc
from opabinia.data.sources.identity_datasets import in_shop as in_shop
from opabinia.data.sources.identity_datasets import market1501 as market1501
from opabinia.data.sources.identity_datasets import msmt17 as msmt17
from opabinia.data.sources.identity_datasets import online_products as online_products
from opabinia.data.sources.identity_datasets import vehicleid as vehicleid
from opabinia.data.sources.identity_datasets import veri as veri
from opabinia.data.sources.identity_datasets import veri_wild as veri_wild
from opabinia.data.sources.idx import Idx as Idx
from opabinia.data.sources.mot import MotIdentities as MotIdentities
from opabinia.data.sources.mot import mot as mot
from opabinia.data.sources.moving_digits import MovingDigits as MovingDigits
from opabinia.data.sources.object_maps import ObjectMaps as ObjectMaps
from opabinia.data.sources.object_maps import digit_maps as digit_maps
from opabinia.data.sources.packed_videos import PackedVideos as PackedVideos
from opabinia.data.sources.pedestrian_attributes import dukemtmc_attributes as dukemtmc_attributes
from opabinia.data.sources.pedestrian_attributes import market1501_attributes as market1501_attributes
from opabinia.data.sources.pedestrian_attributes import pa100k as pa100k
from opabinia.data.sources.placed_digits import PlacedDigits as PlacedDigits
from opabinia.data.sources.revisited import Revisited as Revisited
from opabinia.data.sources.segmentation_folder import segmentation_folder as segmentation_folder
from opabinia.data.sources.segmentation_folder import segmentation_list as segmentation_list
from opabinia.data.sources.segmentation_presets import ade20k as ade20k
from opabinia.data.sources.segmentation_presets import cityscapes as cityscapes
from opabinia.data.sources.segmentation_presets import coco_stuff as coco_stuff
from opabinia.data.sources.segmentation_presets import voc_segmentation as voc_segmentation
from opabinia.data.sources.shards import Shards as Shards
from opabinia.data.sources.subset import subset as subset
from opabinia.data.sources.synthetic import Synthetic as Synthetic
from opabinia.data.sources.table import ImagePairs as ImagePairs
from opabinia.data.sources.table import Table as Table
from opabinia.data.sources.table import identity_table as identity_table
from opabinia.data.sources.video_lists import VideoList as VideoList
from opabinia.data.sources.videos import FrameFolders as FrameFolders
from opabinia.data.sources.videos import Videos as Videos
from opabinia.data.sources.videos import VideoViews as VideoViews
from opabinia.data.sources.voc import voc as voc
from opabinia.data.sources.wrapper import ImageLabels as ImageLabels
from opabinia.data.sources.wrapper import Indexed as Indexed
from opabinia.data.sources.wrapper import StuffMaps as StuffMaps
from opabinia.data.sources.wrapper import Unlabeled as Unlabeled
from opabinia.data.sources.yolo import yolo as yolo
