"""``python -m nightly.benchmarks``: all tables, one after the other."""

from .main import main

raise SystemExit(main())
