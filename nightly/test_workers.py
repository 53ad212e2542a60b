"""A process whose DataLoader lost a worker ends with an error, and does not hang at exit."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal
import multifit
import numpy as np
from mxnet import gluon
from multifit.engines.loaders import iterate

class Deadly(gluon.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, "float32")

list(iterate(gluon.data.DataLoader(Deadly(), 2, num_workers=2)))
"""


def test_a_process_whose_worker_was_killed_ends() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "killed by signal 9" in done.stderr.splitlines()[-1]
