"""The plan of a run: every name with what was really found for it."""

from __future__ import annotations

from .binding import stage_plan
from .plan import Plan, StagePlan, TrainerPlan

__all__ = ["Plan", "StagePlan", "TrainerPlan", "stage_plan"]
