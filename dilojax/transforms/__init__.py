"""Gradient transformations; they know axis names and nothing of devices."""

from dilojax.transforms._directions import (
  RadialDirectionalMean as RadialDirectionalMean,
)
from dilojax.transforms._directions import isotropic as isotropic
from dilojax.transforms._directions import (
  radial_directional_mean as radial_directional_mean,
)
from dilojax.transforms._dreamddp import TurnOver as TurnOver
from dilojax.transforms._dreamddp import TurnState as TurnState
from dilojax.transforms._dreamddp import by_module as by_module
from dilojax.transforms._dreamddp import dreamddp as dreamddp
from dilojax.transforms._drop import DroppingState as DroppingState
from dilojax.transforms._drop import dropping as dropping
from dilojax.transforms._fragments import by_bytes as by_bytes
from dilojax.transforms._fragments import by_layer as by_layer
from dilojax.transforms._fragments import by_pattern as by_pattern
from dilojax.transforms._gossip import PairsOver as PairsOver
from dilojax.transforms._gossip import PairsState as PairsState
from dilojax.transforms._gossip import noloco as noloco
from dilojax.transforms._gossip import pairs_over as pairs_over
from dilojax.transforms._late import EagerState as EagerState
from dilojax.transforms._late import LateState as LateState
from dilojax.transforms._late import eager as eager
from dilojax.transforms._late import one_round_late as one_round_late
from dilojax.transforms._meeting import Met as Met
from dilojax.transforms._merge import Merge as Merge
from dilojax.transforms._merge import delay_compensated as delay_compensated
from dilojax.transforms._merge import delta as delta
from dilojax.transforms._merge import mix as mix
from dilojax.transforms._merge import overwrite as overwrite
from dilojax.transforms._messages import Encoded as Encoded
from dilojax.transforms._methods import Level as Level
from dilojax.transforms._methods import data_parallel as data_parallel
from dilojax.transforms._methods import diloco as diloco
from dilojax.transforms._methods import hierarchical as hierarchical
from dilojax.transforms._methods import local_sgd as local_sgd
from dilojax.transforms._methods import lookahead as lookahead
from dilojax.transforms._methods import loscar_sgd as loscar_sgd
from dilojax.transforms._methods import post_local as post_local
from dilojax.transforms._methods import snoo as snoo
from dilojax.transforms._methods import sparta as sparta
from dilojax.transforms._prune import sign_prune as sign_prune
from dilojax.transforms._recipes import cocodc as cocodc
from dilojax.transforms._recipes import decoupled_merge as decoupled_merge
from dilojax.transforms._recipes import delayed_diloco as delayed_diloco
from dilojax.transforms._recipes import eager_diloco as eager_diloco
from dilojax.transforms._recipes import muloco as muloco
from dilojax.transforms._recipes import sparseloco as sparseloco
from dilojax.transforms._reduce import MeanOver as MeanOver
from dilojax.transforms._reduce import Reduction as Reduction
from dilojax.transforms._reduce import mean_over as mean_over
from dilojax.transforms._send import EncodeState as EncodeState
from dilojax.transforms._send import ErrorFeedbackState as ErrorFeedbackState
from dilojax.transforms._send import encode as encode
from dilojax.transforms._send import error_feedback as error_feedback
from dilojax.transforms._server import Answer as Answer
from dilojax.transforms._server import BufferedState as BufferedState
from dilojax.transforms._server import (
  DelayedNesterovState as DelayedNesterovState,
)
from dilojax.transforms._server import answer_of as answer_of
from dilojax.transforms._server import buffered as buffered
from dilojax.transforms._server import delayed_nesterov as delayed_nesterov
from dilojax.transforms._sharing import SharedOver as SharedOver
from dilojax.transforms._sharing import Traffic as Traffic
from dilojax.transforms._sharing import Varies as Varies
from dilojax.transforms._sharing import WireForm as WireForm
from dilojax.transforms._sharing import agreeing as agreeing
from dilojax.transforms._sharing import anchor_of as anchor_of
from dilojax.transforms._sharing import apply_updates as apply_updates
from dilojax.transforms._sharing import codec_of as codec_of
from dilojax.transforms._sharing import has_private_anchor as has_private_anchor
from dilojax.transforms._sharing import names_of as names_of
from dilojax.transforms._sharing import replica_axes as replica_axes
from dilojax.transforms._stacked import by_stacked_layer as by_stacked_layer
from dilojax.transforms._staleness import DropStaleState as DropStaleState
from dilojax.transforms._staleness import compensate_delay as compensate_delay
from dilojax.transforms._staleness import drop_stale as drop_stale
from dilojax.transforms._staleness import hinge as hinge
from dilojax.transforms._staleness import polynomial as polynomial
from dilojax.transforms._staleness import rennala as rennala
from dilojax.transforms._staleness import ringmaster as ringmaster
from dilojax.transforms._staleness import (
  scale_by_staleness as scale_by_staleness,
)
from dilojax.transforms._streaming import in_turns as in_turns
from dilojax.transforms._streaming import offsets as offsets
from dilojax.transforms._streaming import streaming_diloco as streaming_diloco
from dilojax.transforms._subset import SubsetOver as SubsetOver
from dilojax.transforms._subset import SubsetState as SubsetState
from dilojax.transforms._subset import subset_mean_over as subset_mean_over
from dilojax.transforms._synchronize import SynchronizeState as SynchronizeState
from dilojax.transforms._synchronize import synchronize as synchronize
from dilojax.transforms._tables import GradientTableState as GradientTableState
from dilojax.transforms._tables import MaleniaState as MaleniaState
from dilojax.transforms._tables import RingleaderState as RingleaderState
from dilojax.transforms._tables import WorkerMeans as WorkerMeans
from dilojax.transforms._tables import gradient_table as gradient_table
from dilojax.transforms._tables import malenia as malenia
from dilojax.transforms._tables import ringleader as ringleader
from dilojax.transforms._traffic import Link as Link
from dilojax.transforms._traffic import links as links
from dilojax.transforms._until import UntilState as UntilState
from dilojax.transforms._until import until as until
