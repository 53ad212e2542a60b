"""Make the documentation's pictures: ``python docs/make_images.py [NAME ...]``.

A task makes each of them in a temporary folder; the tutorial's code makes those of ``tutorial``. They are
saved as small PNGs in ``docs/images/``. The report's picture needs Chromium. All take about 20 minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TRAIN = [sys.executable, "-m", "multifit", "train"]
# The name of an image: the task's arguments, and which of its pictures to show.
PICTURES = {
    "scenes": ("scenes.py", "scenes"),
    "digits": ("digits.py", "samples"),
    "logistic_regression": ("logistic_regression.py", "weights"),
    "classification": ("classification.py --set model=lenet", "confusion_digit"),
    "augmentation": ("augmentation.py", "augmented"),
    "segmentation": ("segmentation.py", "samples"),
    "detection": ("detection.py", "samples"),
    "dcgan": ("dcgan.py", "samples"),
    "sentiment": ("sentiment.py --set model=textcnn", "misread"),
    "translation": ("translation.py", "attention"),
}


def main(names: list[str]) -> None:
    """Make the pictures with these names, or all."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "tasks").symlink_to(ROOT / "tasks")  # the report shows the command
        for name in names or [*PICTURES, "tutorial"]:
            if name == "tutorial":
                draw_tutorial(folder)
                continue
            task, picture = PICTURES[name]
            run = Path(folder) / name
            command = [*TRAIN, *f"tasks/{task} --quiet --output {name}".split()]
            subprocess.run(command, cwd=folder, check=True)
            reduce(run / f"{picture}.png", IMAGES / f"{name}.png")
            if name == "digits":
                photograph_report(run, IMAGES / "report.png")


def photograph_report(run: Path, image: Path) -> None:
    """Save the first screen of a run's report."""
    page, screen = run / "report.html", run / "report.png"
    report = [sys.executable, "-m", "multifit", "report", run.name, "--output", str(page)]
    subprocess.run(report, cwd=run.parent, check=True)  # the page shows the folder as it was given
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    browser += ["--window-size=1200,1260", f"--screenshot={screen}"]
    subprocess.run([*browser, page.as_uri()], check=True)
    reduce(screen, image)


def draw_tutorial(folder: str) -> None:
    """Run the tutorial's code and save the figures that it draws, in order."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    code += """
curves(history, [".*_loss", ".*_accuracy"]).savefig("curves.png")
for number, name in zip(plt.get_fignums(), ["digits", "answers"]):
    plt.figure(number).savefig(f"{name}.png", dpi=160, bbox_inches="tight")
"""
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    for name in ("digits", "curves", "answers"):
        reduce(Path(folder) / f"{name}.png", IMAGES / f"tutorial_{name}.png", 800)


def reduce(source: Path, target: Path, width: int = 1000) -> None:
    """Copy a PNG, at most `width` pixels wide and with 256 colours."""
    image = Image.open(source).convert("RGB")
    image.thumbnail((width, 10 * width), Image.Resampling.LANCZOS)
    target.parent.mkdir(exist_ok=True)
    image.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
