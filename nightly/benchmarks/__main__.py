"""``python -m nightly.benchmarks`` measures all tables, one after the other."""

from .main import main

raise SystemExit(main())
