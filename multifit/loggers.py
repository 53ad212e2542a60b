"""Trackers of experiments for `LogTo`, which documents their methods: Weights & Biases, MLflow and Comet.

Each is made with a run that was started in its library's own way, and that is ended there, too. Where several
processes train together, only the first one needs a run.
"""

import re
from pathlib import Path
from typing import Any

__all__ = ["Comet", "MLflow", "WandB"]


class WandB:
    """Logs to Weights & Biases: ``LogTo(loggers.WandB(wandb.init(project="digits")))``.

    Figures are drawn over the epoch, running figures over the number of batches. Files become artifacts.

    Parameters
    ----------
    run : wandb.Run
        What ``wandb.init`` returned.
    """

    def __init__(self, run: Any) -> None:
        self.run = run

    def log_settings(self, settings: dict[str, Any]) -> None:
        self.run.config.update(settings, allow_val_change=True)
        self.run.define_metric("*", step_metric="epoch")
        self.run.define_metric("batches/*", step_metric="step")

    def log_figures(self, figures: dict[str, float], step: int, epoch: int | None) -> None:
        self.run.log({**figures, "step": step, **({} if epoch is None else {"epoch": epoch})})

    def log_picture(self, name: str, figure: Any, step: int, epoch: int) -> None:
        import matplotlib.pyplot  # noqa: F401 - wandb expects it to be imported
        import wandb

        self.run.log({name: wandb.Image(figure), "step": step, "epoch": epoch})

    def log_file(self, path: Path) -> None:
        self.run.log_artifact(str(path), type="folder" if path.is_dir() else "file")


class MLflow:
    """Logs to MLflow: ``LogTo(loggers.MLflow(mlflow.start_run()))``.

    The step of a figure is its epoch; that of a running figure is the number of batches trained. Settings
    that the run has already stay as they are, because MLflow refuses to change them.

    Parameters
    ----------
    run : mlflow.ActiveRun
        What ``mlflow.start_run`` returned.
    """

    def __init__(self, run: Any) -> None:
        import mlflow

        self.run, self._mlflow = run, mlflow

    def log_settings(self, settings: dict[str, Any]) -> None:
        number = self.run.info.run_id
        known = self._mlflow.get_run(number).data.params
        named = {_valid(name): value for name, value in settings.items() if _valid(name) not in known}
        self._mlflow.log_params(named, run_id=number)

    def log_figures(self, figures: dict[str, float], step: int, epoch: int | None) -> None:
        named = {_valid(name): value for name, value in figures.items()}
        self._mlflow.log_metrics(named, step if epoch is None else epoch, run_id=self.run.info.run_id)

    def log_picture(self, name: str, figure: Any, step: int, epoch: int) -> None:
        client = self._mlflow.MlflowClient()
        client.log_figure(self.run.info.run_id, figure, f"{_valid(name)}/{epoch:04}.png")

    def log_file(self, path: Path) -> None:
        log = self._mlflow.log_artifacts if path.is_dir() else self._mlflow.log_artifact
        log(str(path), path.name if path.is_dir() else None, run_id=self.run.info.run_id)


class Comet:
    """Logs to Comet: ``LogTo(loggers.Comet(comet_ml.start(project_name="digits")))``. Files become assets.

    Parameters
    ----------
    run : comet_ml.CometExperiment
        What ``comet_ml.start`` returned.
    """

    def __init__(self, run: Any) -> None:
        self.run = run

    def log_settings(self, settings: dict[str, Any]) -> None:
        texts = {name: str(value) for name, value in settings.items() if len(str(value)) > 1000}
        self.run.log_parameters({name: value for name, value in settings.items() if name not in texts})
        for name, text in texts.items():  # which Comet would cut
            self.run.log_text(text, metadata={"name": name})

    def log_figures(self, figures: dict[str, float], step: int, epoch: int | None) -> None:
        self.run.log_metrics(figures, step=step, epoch=epoch)

    def log_picture(self, name: str, figure: Any, step: int, epoch: int) -> None:
        self.run.log_figure(name, figure, step=step)

    def log_file(self, path: Path) -> None:
        if path.is_dir():
            self.run.log_asset_folder(str(path), log_file_name=True)
        else:
            self.run.log_asset(str(path))


def _valid(name: str) -> str:
    """Replace the characters that MLflow does not take in names."""
    return re.sub(r"[^\w\-./: ]", "_", name)
