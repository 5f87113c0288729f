"""Sources, sampling, decoding, transforms and the loader: everything between files and batches.

A sample is a pure function of (seed, epoch, position), and the plan of batches is global: batches do not depend on the
number of workers, and with resuming or another number of processes each step still trains on the same samples.
"""

from opabinia.contracts import Stream as Stream
from opabinia.contracts import TrainingStream as TrainingStream
from opabinia.contracts import ValidationStream as ValidationStream
from opabinia.data.sample_keys import register_sample_key as register_sample_key
from opabinia.data.settings import Data as Data
