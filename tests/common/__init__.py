"""Small nets, data, specs and loops by hand, which all tests share.

=============  ==================================================================================
nets           `nets`, `shared_nets` (of several tasks), `language` (with a state), `random_graphs`
data           `data`, `sequences` (of many lengths), `joint_data` (of several processes)
specs          `specs`, `weighted_losses`, `whole_pass` (every metric), `balance_methods`
loops by hand  `hand_loop`, `accumulating`; and fits to compare: `compared`, `joint_training`
comparing      `compare`, `resuming`, `faulty` and `noted` (what is refused), `grids` (settings), `handlers`
processes      `ranks` (which are threads), `launch`, `processes`, `full_disk`
=============  ==================================================================================
"""

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)
