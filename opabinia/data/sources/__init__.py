"""Where samples come from. A source gives one sample by its index and draws nothing from what it read before."""

from opabinia.data.sources.digits import Digits as Digits
from opabinia.data.sources.folder import ImageFolder as ImageFolder
from opabinia.data.sources.idx import Idx as Idx
