"""Parameters, trainers, schedules and fused updates."""
