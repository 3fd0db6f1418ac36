"""Models as plain functions: `init(key) -> params`, `loss(params, batch)`."""

from dilojax.models._classifier import classifier as classifier
from dilojax.models._decoder import decoder as decoder
from dilojax.models._model import Model as Model
