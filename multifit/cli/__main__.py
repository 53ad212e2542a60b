"""``python -m multifit.cli`` is the command ``multifit``."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
