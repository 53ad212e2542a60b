"""The plan of a run: every declared name with its array."""

from __future__ import annotations

from .binding import stage_plan
from .loaders import LoaderPlan
from .plan import Plan, TrainerPlan
from .stage import Row, StagePlan

__all__ = ["LoaderPlan", "Plan", "Row", "StagePlan", "TrainerPlan", "stage_plan"]
