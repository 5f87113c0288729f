"""Where samples come from. A source gives one sample by its index and draws nothing from what it read before."""

from opabinia.data.sources.digits import Digits as Digits
from opabinia.data.sources.folder import ImageFolder as ImageFolder
from opabinia.data.sources.hugging_face import HuggingFace as HuggingFace
from opabinia.data.sources.idx import Idx as Idx
from opabinia.data.sources.joined import Joined as Joined
from opabinia.data.sources.people import dukemtmc as dukemtmc
from opabinia.data.sources.people import market1501 as market1501
from opabinia.data.sources.people import dukemtmc as dukemtmc
from opabinia.data.sources.people import market1501 as market1501
from opabinia.data.sources.shards import Shards as Shards
from opabinia.data.sources.synthetic import Synthetic as Synthetic
from opabinia.data.sources.table import Table as Table
