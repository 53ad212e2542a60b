"""What a CheckpointHandler has written."""

from pathlib import Path

from multifit.checkpoints import read_info, verify

from .conftest import At


def stop(step: int, event: str = "batch_end", priority: float = 0.0) -> At:
    return At(event, lambda estimator: True, step, priority)


def facts(folder: Path) -> list[tuple[int, int, int, bool, bool]]:
    """Return epoch, step, batch, complete, exact of the checkpoints of a run, by step; all must be intact."""
    paths = sorted((folder / "checkpoints").iterdir())
    infos = [read_info(path) for path in paths]
    assert [verify(info) for info in infos] == [[]] * len(infos)
    facts = [(info.path.name, info.facts) for info in infos]
    for name, fact in facts:
        assert name == f"epoch-{fact['epoch']:04d}-step-{fact['step']:08d}"
    return [tuple(fact[key] for key in ("epoch", "step", "batch", "complete", "exact")) for _, fact in facts]
