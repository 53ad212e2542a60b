"""``multifit report`` writes a page on runs that ``multifit train`` made."""

from pathlib import Path

PICTURES = """
def pictures():
    from matplotlib.figure import Figure
    return {"mine": Figure(figsize=(1, 1))}
"""


def test_real_runs_side_by_side(write, multifit, monkeypatch):
    monkeypatch.setattr(
        "multifit.report.html_page.to_svg", lambda figure: b"<svg/>"
    )  # saves half of the time
    for rate in (0.01, 0.1):
        options = ("--set", f"rate={rate}", "--epochs", 1, "--output", f"rate-{rate}", "--quiet")
        assert multifit("train", write(PICTURES), *options).code == 0
    result = multifit("report", "rate-0.01", "rate-0.1", "rate-0.01")
    assert (result.code, result.out) == (0, "wrote report.html\n")
    page = Path("report.html").read_text("utf-8")
    for part in ("Side by side", "<td>0.01</td><td>0.1</td>", "SoftmaxCrossEntropyLoss", "val_loss"):
        assert part in page
    assert page.count("data:image/png;base64,") == 2 and page.count("<section") == 3


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
    assert (
        result.code == 2
        and "nowhere is not the folder of a run" in result.err
        and not Path("report.html").exists()
    )


def test_a_page_that_cannot_be_written_is_an_error(multifit):
    Path("run").mkdir()
    Path("run/plan.txt").write_text("the plan")
    result = multifit("report", "run", "--output", "run/plan.txt/a.html")
    assert result.code == 2 and "File exists: " in result.err


def test_a_page_does_not_replace_another_file(multifit):
    Path("run").mkdir()
    for name in ("run/plan.txt", "old.html"):
        Path(name).write_text("the plan")
    result = multifit("report", "run", "--output", "run/plan.txt")
    assert result.code == 2 and "run/plan.txt exists, and is not an HTML page" in result.err
    assert Path("run/plan.txt").read_text() == "the plan"
    assert multifit("report", "run", "--output", "old.html").code == 0
