"""Wire formats: how the values of a replica travel, in how many bytes."""

from dilojax.wire._casts import bfloat16 as bfloat16
from dilojax.wire._casts import float8 as float8
from dilojax.wire._casts import float16 as float16
from dilojax.wire._casts import float32 as float32
from dilojax.wire._codebook import statistical as statistical
from dilojax.wire._codec import Codec as Codec
from dilojax.wire._e3m0 import e3m0 as e3m0
from dilojax.wire._integers import int4 as int4
from dilojax.wire._integers import int8 as int8
from dilojax.wire._sign import sign as sign
from dilojax.wire._sparse import random_subset as random_subset
from dilojax.wire._sparse import top_k as top_k
