"""Gradient transformations; they know axis names and nothing of devices."""

from dilojax.transforms._merge import delta as delta
from dilojax.transforms._merge import mix as mix
from dilojax.transforms._merge import overwrite as overwrite
from dilojax.transforms._methods import Level as Level
from dilojax.transforms._methods import data_parallel as data_parallel
from dilojax.transforms._methods import diloco as diloco
from dilojax.transforms._methods import hierarchical as hierarchical
from dilojax.transforms._methods import local_sgd as local_sgd
from dilojax.transforms._methods import lookahead as lookahead
from dilojax.transforms._methods import post_local as post_local
from dilojax.transforms._methods import snoo as snoo
from dilojax.transforms._reduce import mean_over as mean_over
from dilojax.transforms._sharing import Link as Link
from dilojax.transforms._sharing import SharedOver as SharedOver
from dilojax.transforms._sharing import agreeing as agreeing
from dilojax.transforms._sharing import anchor_of as anchor_of
from dilojax.transforms._sharing import apply_updates as apply_updates
from dilojax.transforms._sharing import links as links
from dilojax.transforms._sharing import replica_axes as replica_axes
from dilojax.transforms._synchronize import SynchronizeState as SynchronizeState
from dilojax.transforms._synchronize import synchronize as synchronize
from dilojax.transforms._until import UntilState as UntilState
from dilojax.transforms._until import until as until
