"""Where samples come from. A source gives one sample by its index and draws nothing from what it read before."""

from opabinia.data.sources.coco import coco as coco
from opabinia.data.sources.coco import roboflow as roboflow
from opabinia.data.sources.digit_scenes import DigitScenes as DigitScenes
from opabinia.data.sources.digit_views import DigitViews as DigitViews
from opabinia.data.sources.digits import Digits as Digits
from opabinia.data.sources.folder import ImageFolder as ImageFolder
from opabinia.data.sources.hugging_face import HuggingFace as HuggingFace
from opabinia.data.sources.identity_table import identity_table as identity_table
from opabinia.data.sources.idx import Idx as Idx
from opabinia.data.sources.joined import Joined as Joined
from opabinia.data.sources.joined import JoinedIdentities as JoinedIdentities
from opabinia.data.sources.listed_people import cuhk03 as cuhk03
from opabinia.data.sources.listed_people import msmt17 as msmt17
from opabinia.data.sources.numbered import Numbered as Numbered
from opabinia.data.sources.people import dukemtmc as dukemtmc
from opabinia.data.sources.people import market1501 as market1501
from opabinia.data.sources.placed_digits import PlacedDigits as PlacedDigits
from opabinia.data.sources.products import class_folders as class_folders
from opabinia.data.sources.products import online_products as online_products
from opabinia.data.sources.shards import Shards as Shards
from opabinia.data.sources.synthetic import Synthetic as Synthetic
from opabinia.data.sources.table import Table as Table
from opabinia.data.sources.vehicles import vehicleid as vehicleid
from opabinia.data.sources.vehicles import veri as veri
from opabinia.data.sources.voc import voc as voc
from opabinia.data.sources.yolo import yolo as yolo
