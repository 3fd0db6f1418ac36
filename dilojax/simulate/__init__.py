"""Models of networks and of time: no accelerator, no model, no training."""

from dilojax.simulate._comparison import Method as Method
from dilojax.simulate._comparison import method_names as method_names
from dilojax.simulate._comparison import (
  utilization_report as utilization_report,
)
from dilojax.simulate._comparison import utilization_table as utilization_table
from dilojax.simulate._crashes import Crashes as Crashes
from dilojax.simulate._crashes import Outage as Outage
from dilojax.simulate._crashes import listed_crashes as listed_crashes
from dilojax.simulate._crashes import random_crashes as random_crashes
from dilojax.simulate._dreamddp import Plan as Plan
from dilojax.simulate._dreamddp import plan_dreamddp as plan_dreamddp
from dilojax.simulate._dreamddp import plan_plsgd as plan_plsgd
from dilojax.simulate._dreamddp import step_seconds as step_seconds
from dilojax.simulate._dreamddp import waits as waits
from dilojax.simulate._exchanges import Exchange as Exchange
from dilojax.simulate._exchanges import Layers as Layers
from dilojax.simulate._exchanges import Link as Link
from dilojax.simulate._exchanges import even_layers as even_layers
from dilojax.simulate._exchanges import in_turns as in_turns
from dilojax.simulate._exchanges import together as together
from dilojax.simulate._fits import PowerLaw as PowerLaw
from dilojax.simulate._fits import fit_power_law as fit_power_law
from dilojax.simulate._fits import rounding_margin as rounding_margin
from dilojax.simulate._latency import Waiting as Waiting
from dilojax.simulate._latency import log_normal_sigma as log_normal_sigma
from dilojax.simulate._latency import pair_exchange_time as pair_exchange_time
from dilojax.simulate._latency import (
  tree_all_reduce_time as tree_all_reduce_time,
)
from dilojax.simulate._latency import waiting_times as waiting_times
from dilojax.simulate._links import Links as Links
from dilojax.simulate._network import Network as Network
from dilojax.simulate._network import check_workers as check_workers
from dilojax.simulate._network import connect as connect
from dilojax.simulate._network import even_sites as even_sites
from dilojax.simulate._network import transfer_seconds as transfer_seconds
from dilojax.simulate._network import two_levels as two_levels
from dilojax.simulate._plans import dreamddp_report as dreamddp_report
from dilojax.simulate._plans import dreamddp_table as dreamddp_table
from dilojax.simulate._profile import Unit as Unit
from dilojax.simulate._profile import profile_text as profile_text
from dilojax.simulate._profile import read_profile as read_profile
from dilojax.simulate._queue import Event as Event
from dilojax.simulate._queue import Queue as Queue
from dilojax.simulate._random_times import bernoulli_times as bernoulli_times
from dilojax.simulate._random_times import (
  half_normal_times as half_normal_times,
)
from dilojax.simulate._random_times import log_cauchy_times as log_cauchy_times
from dilojax.simulate._random_times import log_normal_times as log_normal_times
from dilojax.simulate._random_times import ringleader_times as ringleader_times
from dilojax.simulate._rings import Ring as Ring
from dilojax.simulate._rings import best_ring as best_ring
from dilojax.simulate._rings import ring_seconds as ring_seconds
from dilojax.simulate._rings import star_seconds as star_seconds
from dilojax.simulate._rings import tree_seconds as tree_seconds
from dilojax.simulate._rings import worker_ring as worker_ring
from dilojax.simulate._speeds import WorkerTimes as WorkerTimes
from dilojax.simulate._speeds import fixed_times as fixed_times
from dilojax.simulate._speeds import measured_times as measured_times
from dilojax.simulate._speeds import read_step_seconds as read_step_seconds
from dilojax.simulate._speeds import rounds_by_speed as rounds_by_speed
from dilojax.simulate._utilization import GRID as GRID
from dilojax.simulate._utilization import Trace as Trace
from dilojax.simulate._utilization import Utilization as Utilization
from dilojax.simulate._utilization import (
  required_bandwidth as required_bandwidth,
)
from dilojax.simulate._utilization import utilization as utilization
from dilojax.simulate._wall_clock import Seconds as Seconds
from dilojax.simulate._wall_clock import (
  all_reduce_seconds as all_reduce_seconds,
)
from dilojax.simulate._wall_clock import training_seconds as training_seconds
