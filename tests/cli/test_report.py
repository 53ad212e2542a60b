"""``multifit report`` writes a page on runs that ``multifit train`` made."""

import json
import shutil
from pathlib import Path


def test_real_runs_side_by_side(trained, multifit, monkeypatch):
    monkeypatch.setattr("multifit.cli.html_page.to_svg", lambda figure: b"<svg/>")  # half of the time
    shutil.copy("runs/small/curves.png", "runs/small/mine.png")
    record = Path("runs/small/settings.json")
    content = json.loads(record.read_text()) | {"pictures": ["curves.png", "mine.png"]}
    record.write_text(json.dumps(content))
    shutil.copytree("runs/small", "other")
    Path("other/settings.json").write_text(json.dumps(content | {"settings": {"rate": "0.2"}}))
    result = multifit("report", "runs/small", "other", "runs/small")
    assert (result.code, result.out) == (0, "wrote report.html\n")
    page = Path("report.html").read_text("utf-8")
    for part in ("Side by side", "<td>0.1</td><td>0.2</td>", "SoftmaxCrossEntropyLoss", "val_loss"):
        assert part in page
    assert page.count("data:image/png;base64,") == 6 and page.count("<section") == 3


def test_missing_files_are_listed_and_the_page_is_written(multifit):
    Path("run").mkdir()
    Path("run/plan.txt").write_text("the plan")
    result = multifit("report", "run", "--output", "pages/one.html")
    missing = ("settings.json", "plan.json", "history.json")
    lines = [*(f"run: {name}: No such file or directory" for name in missing), "wrote pages/one.html"]
    assert (result.code, result.out.splitlines()) == (0, lines)
    assert "the plan" in Path("pages/one.html").read_text("utf-8")


def test_a_folder_that_does_not_exist_is_an_error(multifit):
    result = multifit("report", "nowhere")
    assert result.code == 2 and "nowhere is not the folder of a run" in result.err
    assert not Path("report.html").exists()


def test_a_page_does_not_replace_another_file(multifit):
    Path("run").mkdir()
    for name in ("run/plan.txt", "old.html"):
        Path(name).write_text("the plan")
    result = multifit("report", "run", "--output", "run/plan.txt")
    assert result.code == 2 and "run/plan.txt exists, and is not an HTML page" in result.err
    assert Path("run/plan.txt").read_text() == "the plan"
    assert multifit("report", "run", "--output", "old.html").code == 0
