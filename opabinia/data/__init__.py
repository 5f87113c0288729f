"""Data: order (epoch to positions), batches (positions to rows), sources, transforms, collate, mix, and the loader.

A sample is a pure function of (seed, epoch, position), and a batch is global: what is read does not depend on the
number of workers or processes, nor on where the run was stopped before.
"""

from opabinia.data.loader import DataError as DataError
from opabinia.data.loader import Loader as Loader
from opabinia.data.settings import Data as Data
from opabinia.data.settings import Stream as Stream
from opabinia.data.settings import ValidationStream as ValidationStream
