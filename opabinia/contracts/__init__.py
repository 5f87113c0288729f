"""Contracts between the packages: data types, protocols and base classes. Read this first.

``engine``, ``data`` and ``tasks`` never import each other; they meet here and are combined in ``training``. Best read
in this order: ``data``, ``sources``, ``plans``, ``clock``, ``evaluation``, ``training``, ``presenting``, ``models``,
``detectors``, ``segmentation``.
``ranges`` and ``parts`` are types for signatures.

Shapes in this package: B samples of a batch, C channels, H height, W width, K classes, D features.
"""

from opabinia.contracts.balance import LossBalance as LossBalance
from opabinia.contracts.balance import SharedLayer as SharedLayer
from opabinia.contracts.clock import Clock as Clock
from opabinia.contracts.clock import Schedule as Schedule
from opabinia.contracts.clock import Schedules as Schedules
from opabinia.contracts.data import Batch as Batch
from opabinia.contracts.data import CombiningTransform as CombiningTransform
from opabinia.contracts.data import DataMismatch as DataMismatch
from opabinia.contracts.data import DatasetInfo as DatasetInfo
from opabinia.contracts.data import GroundTruth as GroundTruth
from opabinia.contracts.data import Indices as Indices
from opabinia.contracts.data import Mix as Mix
from opabinia.contracts.data import Sample as Sample
from opabinia.contracts.data import Sampler as Sampler
from opabinia.contracts.data import Transform as Transform
from opabinia.contracts.data import Video as Video
from opabinia.contracts.data import label_names as label_names
from opabinia.contracts.detectors import Detections as Detections
from opabinia.contracts.detectors import Detector as Detector
from opabinia.contracts.detectors import Neck as Neck
from opabinia.contracts.detectors import Sizes as Sizes
from opabinia.contracts.detectors import Target as Target
from opabinia.contracts.evaluation import EMBEDDING as EMBEDDING
from opabinia.contracts.evaluation import Evaluator as Evaluator
from opabinia.contracts.evaluation import Predictions as Predictions
from opabinia.contracts.export import ExportModule as ExportModule
from opabinia.contracts.export import relative_difference as relative_difference
from opabinia.contracts.logging import CheckpointManager as CheckpointManager
from opabinia.contracts.logging import Logger as Logger
from opabinia.contracts.logging import MetricsLog as MetricsLog
from opabinia.contracts.logging import Scalars as Scalars
from opabinia.contracts.masks import InstanceMasks as InstanceMasks
from opabinia.contracts.models import Backbone as Backbone
from opabinia.contracts.models import FeatureKind as FeatureKind
from opabinia.contracts.models import Features as Features
from opabinia.contracts.models import Head as Head
from opabinia.contracts.models import Level as Level
from opabinia.contracts.models import Memory as Memory
from opabinia.contracts.models import Preprocessing as Preprocessing
from opabinia.contracts.models import Tokens as Tokens
from opabinia.contracts.models import non_memory_buffers as non_memory_buffers
from opabinia.contracts.parts import BackbonePart as BackbonePart
from opabinia.contracts.parts import BalancePart as BalancePart
from opabinia.contracts.parts import DecoderPart as DecoderPart
from opabinia.contracts.parts import DetectorPart as DetectorPart
from opabinia.contracts.parts import EvaluatorPart as EvaluatorPart
from opabinia.contracts.parts import HeadPart as HeadPart
from opabinia.contracts.parts import HookPart as HookPart
from opabinia.contracts.parts import LoggerPart as LoggerPart
from opabinia.contracts.parts import LossPart as LossPart
from opabinia.contracts.parts import MetricLossPart as MetricLossPart
from opabinia.contracts.parts import MixPart as MixPart
from opabinia.contracts.parts import NeckPart as NeckPart
from opabinia.contracts.parts import OptimizerPart as OptimizerPart
from opabinia.contracts.parts import ParallelPart as ParallelPart
from opabinia.contracts.parts import PoolingPart as PoolingPart
from opabinia.contracts.parts import SamplerPart as SamplerPart
from opabinia.contracts.parts import SchedulePart as SchedulePart
from opabinia.contracts.parts import SegmentationLossPart as SegmentationLossPart
from opabinia.contracts.parts import ShapesPart as ShapesPart
from opabinia.contracts.parts import SourcePart as SourcePart
from opabinia.contracts.parts import StepPart as StepPart
from opabinia.contracts.parts import TaskPart as TaskPart
from opabinia.contracts.parts import TransformPart as TransformPart
from opabinia.contracts.plans import BatchSchedule as BatchSchedule
from opabinia.contracts.plans import BatchShape as BatchShape
from opabinia.contracts.plans import GlobalBatch as GlobalBatch
from opabinia.contracts.plans import Loader as Loader
from opabinia.contracts.plans import Plan as Plan
from opabinia.contracts.plans import RunSpec as RunSpec
from opabinia.contracts.plans import Stage as Stage
from opabinia.contracts.presenting import Comparison as Comparison
from opabinia.contracts.presenting import DrawOptions as DrawOptions
from opabinia.contracts.presenting import Panel as Panel
from opabinia.contracts.presenting import Presenter as Presenter
from opabinia.contracts.ranges import Channels as Channels
from opabinia.contracts.ranges import Count as Count
from opabinia.contracts.ranges import Fraction as Fraction
from opabinia.contracts.ranges import InputPath as InputPath
from opabinia.contracts.ranges import NonNegative as NonNegative
from opabinia.contracts.ranges import NormOrder as NormOrder
from opabinia.contracts.ranges import Positive as Positive
from opabinia.contracts.segmentation import IGNORE_LABEL as IGNORE_LABEL
from opabinia.contracts.segmentation import GroundTruthMap as GroundTruthMap
from opabinia.contracts.segmentation import MaskTargets as MaskTargets
from opabinia.contracts.segmentation import SegmentationDecoder as SegmentationDecoder
from opabinia.contracts.sources import RaggedArray as RaggedArray
from opabinia.contracts.sources import Source as Source
from opabinia.contracts.sources import SourceInfo as SourceInfo
from opabinia.contracts.training import Hook as Hook
from opabinia.contracts.training import ParallelTask as ParallelTask
from opabinia.contracts.training import Phase as Phase
from opabinia.contracts.training import Run as Run
from opabinia.contracts.training import Step as Step
from opabinia.contracts.training import StepOptions as StepOptions
from opabinia.contracts.training import Stop as Stop
from opabinia.contracts.training import Task as Task
from opabinia.contracts.training import total_loss as total_loss
