"""Corpora, tokenizers, and streams that are a function of (seed, step)."""

from dilojax.data._corpora import digits as digits
from dilojax.data._corpora import files as files
from dilojax.data._corpora import python_stdlib as python_stdlib
from dilojax.data._corpora import synthetic as synthetic
from dilojax.data._dataset import Dataset as Dataset
from dilojax.data._documents import Documents as Documents
from dilojax.data._documents import file_documents as file_documents
from dilojax.data._documents import stdlib_documents as stdlib_documents
from dilojax.data._prefetch import prefetch as prefetch
from dilojax.data._prepared import prepare as prepare
from dilojax.data._prepared import tokens as tokens
from dilojax.data._streams import Streams as Streams
from dilojax.data._streams import heldout_batches as heldout_batches
from dilojax.data._streams import streams as streams
