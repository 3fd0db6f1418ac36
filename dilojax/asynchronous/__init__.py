"""Asynchronous training: workers without a barrier, on a virtual clock."""

from dilojax.asynchronous._loop import Loop as Loop
from dilojax.asynchronous._system import Server as Server
from dilojax.asynchronous._system import System as System
from dilojax.asynchronous._system import Work as Work
from dilojax.asynchronous._system import Worker as Worker
from dilojax.asynchronous._system import check as check
