"""`aorlta-reg score`: what people are told of score runs, and the picture of a run's scores."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from registry import Refused, StorageError
from registry.cli.plots import draw_scores, score_figure
from registry.core.comparison import Verdict
from registry.core.summary import ScorePoint
from tests.cli.conftest import Shelf
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.scoring import CONFIG, RESULT, result_of, write_score_run
from tests.support.values import digest_of

EVIL = "a\x1b[31m\x07\u202e\u2066\x9b0mz"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> Shelf:
    """A copy of the shelf, to be changed."""
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return Shelf(CommandLine(tmp_path / "mine"), shelf.checkpoint, shelf.hex)


def test_score_run_is_added_listed_and_shown(mine: Shelf, tmp_path: Path) -> None:
    cli, digest = mine.cli, f"sha256:{mine.hex}"
    scores = {"pass@1": 0.41, "mmlu": {"law": 2}, "note": "fine"}
    run = write_score_run(tmp_path / "eval", result_of("run@3", run_id="eval-1", scores=scores))
    done = cli("score", "add", run)
    said = "eval-1: mmlu/law 2, pass@1 0.41\n  left out: note is text\n"
    assert (done.code, done.out, done.err) == (0, f"{digest}\n", f"recorded: {said}")
    assert cli("score", "add", run / RESULT).err == f"already recorded: {said}"
    header, row = cli.ok("score", "list").splitlines()
    assert header.split() == ["ADAPTER", "SCORE", "RUN", "STATUS", "SCORES", "ADDED"]
    assert row.split()[:-1] == [mine.hex[:12], "eval-1", "completed", "mmlu/law", "2,", "pass@1", "0.41"]
    assert cli.ok("score", "list", mine.hex[:6]).splitlines() == [header, row]
    shown = cli.ok("show", mine.hex).splitlines()
    assert "score run     eval-1, 20" in "\n".join(shown)
    assert "  score       pass@1 0.41" in shown
    assert f"  from        {run}" in shown


def test_partial_scores_are_marked_wherever_they_are_told(mine: Shelf, tmp_path: Path) -> None:
    cli = mine.cli
    stop = {"reason": "out of time", "detail": {"at": 3}}
    run = write_score_run(tmp_path / "eval", result_of(mine.hex, scores={"pass@1": 0.9}, stop=stop))
    done = cli("score", "add", run)
    assert (done.code, done.out) == (0, f"sha256:{mine.hex}\n")
    first, second = done.err.splitlines()
    assert first == "recorded: score run, stopped early: out of time: partial: pass@1 0.9"
    assert "never shown as an adapter's scores" in second
    (row,) = cli.ok("score", "list").splitlines()[1:]
    assert row.split()[1:6] == ["-", "stopped", "partial:", "pass@1", "0.9"]
    shown = cli.ok("show", mine.hex).splitlines()
    assert "  partial     pass@1 0.9" in shown
    assert any(line.startswith("score run     20") and line.endswith("Z, stopped early: out of time") for line in shown)
    done = cli("score", "plot", "run", "--metric", "pass@1", "--to", tmp_path / "plot.png")
    assert (done.code, done.out) == (3, "")
    assert not (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("result", "config", "arguments", "code", "mentioned"),
    [
        (result_of("run@3"), None, ("--adapter", "0000"), 3, "0000"),
        (result_of("run@3"), None, ("--adapter", "zz z"), 3, "zz z"),
        (result_of("run@3"), {"model": {"adapter": "1" * 64}}, (), 2, "config.json: model.adapter: names another"),
        (result_of("run@9"), None, (), 3, "model.adapter"),
        (result_of(), None, (), 2, "--adapter"),
        (result_of("run@3", status="running"), None, (), 2, "status"),
        (result_of("run@3", scores=None), None, (), 2, "scores"),
        ("{", None, (), 2, "not valid JSON"),
        (result_of("run@3"), "{", (), 2, CONFIG),
    ],
)
def test_what_cannot_be_added_exits_with_its_code_and_one_line(
    result, config, arguments: tuple[str, ...], code: int, mentioned: str, shelf: Shelf, tmp_path: Path
) -> None:
    done = shelf.cli("score", "add", write_score_run(tmp_path / "eval", result, config), *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1
    assert mentioned in done.err
    assert shelf.cli.ok("score", "list").count("\n") == 0


def test_nothing_of_a_score_run_reaches_the_terminal_as_it_is(mine: Shelf, tmp_path: Path) -> None:
    cli = mine.cli
    scores = {EVIL: 1, f"x{EVIL}": "text"} | {f"left-{number}": None for number in range(50)}
    stop = {"reason": EVIL, "detail": EVIL}
    run = write_score_run(tmp_path / EVIL, result_of("run@3", scores=scores, stop=stop, run_id=EVIL))
    write_score_run(tmp_path / "whole", result_of("run@3", scores=scores, run_id=EVIL))
    write_score_run(tmp_path / "bad", result_of(EVIL))
    told = [
        cli("score", "add", run),
        cli("score", "add", tmp_path / "whole"),
        cli("score", "add", tmp_path / "bad"),
        cli("score", "add", tmp_path / EVIL / EVIL),
        cli("score", "list"),
        cli("show", mine.hex),
        cli("score", "plot", "run", "--metric", EVIL, "--to", tmp_path / f"{EVIL}.png"),
        cli("score", "plot", EVIL, "--metric", EVIL, "--to", tmp_path / "no.png"),
        cli("score", "plot", "run", "--metric", "no", "--to", tmp_path / "no.png"),
    ]
    assert [done.code for done in told] == [0, 0, 2, 3, 0, 0, 0, 3, 3]
    assert all(char == "\n" or char.isprintable() for done in told for char in done.out + done.err)
    assert told[1].err.splitlines()[-1] == "  left out: 41 more"
    assert len(told[1].err.splitlines()) == 12
    assert (tmp_path / f"{EVIL}.png").read_bytes().startswith(PNG)


def test_many_scores_are_told_in_one_short_line(mine: Shelf, tmp_path: Path) -> None:
    scores = {f"m{number:03}": number for number in range(300)}
    done = mine.cli("score", "add", write_score_run(tmp_path / "eval", result_of("run@3", scores=scores)))
    assert done.err == "recorded: score run: m000 0, m001 1, m002 2, m003 3, m004 4, m005 5, 294 more\n"


def test_limit_bounds_the_list_and_says_so(mine: Shelf, tmp_path: Path) -> None:
    for number in range(3):
        mine.cli.ok("score", "add", write_score_run(tmp_path / "e", result_of("run@3", scores={"n": number})))
    done = mine.cli("score", "list", "--limit", "2")
    assert [line.split()[-2] for line in done.out.splitlines()[1:]] == ["2", "1"]
    assert "--limit" in done.err
    assert mine.cli("score", "list", "--limit", "0").code == 2


def test_asking_for_scores_makes_no_registry(cli: CommandLine, tmp_path: Path) -> None:
    run = write_score_run(tmp_path / "eval", result_of("1" * 64))
    picture = tmp_path / "plot.png"
    for arguments, code in (
        (("list",), 0),
        (("list", "prod"), 3),
        (("add", run), 3),
        (("plot", "run", "--metric", "x", "--to", picture), 3),
    ):
        assert cli("score", *arguments).code == code
    assert not cli.home.exists()
    assert not picture.exists()


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from registry.cli import main
main()
"""


def test_a_plot_without_matplotlib_is_refused_before_the_registry_is_opened(cli: CommandLine, tmp_path: Path) -> None:
    arguments = ["score", "plot", "run", "--metric", "x", "--to", str(tmp_path / "plot.png")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, *arguments],
        env=cli.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "aorlta-registry[plot]" in done.stderr


def test_a_run_is_plotted_from_the_command_line(mine: Shelf, tmp_path: Path) -> None:
    cli = mine.cli
    for iteration in (1, 2):
        saved = contents(lora_state(seed=iteration), iteration=iteration)
        cli.ok("add", write_checkpoint(tmp_path / "new" / "run", saved, iteration=iteration))
    nowhere = write_checkpoint(tmp_path / "odd", contents(lora_state(seed=9), iteration=None), config={"run_id": "run"})
    shutil.copytree(nowhere, tmp_path / "none")
    odd = cli.ok("add", tmp_path / "none", "--run", "run", "--alpha", "8")
    for adapter in ("run@1", "run@2", "run@3", odd):
        cli.ok("score", "add", write_score_run(tmp_path / adapter, result_of(adapter)))
    picture = tmp_path / "plot.png"
    done = cli("score", "plot", "run", "--metric", "pass@1", "--to", picture)
    assert (done.code, done.out) == (0, f"{picture}\n")
    assert done.err == "not drawn: 1 of 4, of which no iteration is stated\n"
    assert picture.read_bytes().startswith(PNG)
    done = cli("score", "plot", "run", "--metric", "pass@1", "--to", tmp_path / "nowhere" / "plot.png")
    assert (done.code, done.out) == (3, "")
    done = cli("score", "plot", "run", "--metric", "pass@1", "--to", tmp_path)
    assert (done.code, done.out) == (7, "")


def pixels(path: Path) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):
        return (image.imread(path)[:, :, :3] * 255).round().astype(int)


def count(picture: np.ndarray, colour: str) -> int:
    """How many pixels have this very colour."""
    wanted = [int(colour[place : place + 2], 16) for place in (0, 2, 4)]
    return int((picture == wanted).all(axis=2).sum())


def test_each_verdict_is_drawn_in_its_own_colour_and_shape(tmp_path: Path) -> None:
    seen = {}
    for verdict in (*Verdict, None):
        points = [ScorePoint(number, digest_of("a"), number / 10, verdict) for number in (1, 2, 3)]
        draw_scores("r", "m", points, str(tmp_path / "plot.png"))
        picture = pixels(tmp_path / "plot.png")
        colours = {tuple(each) for each in picture.reshape(-1, 3)}
        seen[verdict] = picture
        assert len(colours) > 5
    assert count(seen[Verdict.IDENTICAL], "1a7f37") > 500
    assert count(seen[Verdict.BASE_ONLY], "82071e") > 500
    assert count(seen[Verdict.BASE_ONLY], "1a7f37") == 0
    assert count(seen[None], "8c959f") < 500, "hollow"
    different = {picture.tobytes() for picture in seen.values()}
    assert len(different) == len(seen)


def test_the_legend_tells_the_marks_and_nothing_is_read_as_a_formula() -> None:
    verdicts = [Verdict.BASE_ONLY, None, Verdict.IDENTICAL, None]
    points = [ScorePoint(number, digest_of("a"), 0.5, verdict) for number, verdict in enumerate(verdicts)]
    (axes,) = score_figure("$r$", "$m$", [*points, ScorePoint(None, digest_of("b"), 9, None)]).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [each.get_text() for each in legend.get_texts()] == ["identical (1)", "base-only (1)", "not compared (2)"]
    assert [list(line.get_xdata()) for line in axes.lines] == [[0, 1, 2, 3]]
    assert axes.get_title("left") == "$m$ by iteration of run $r$"
    assert [text.get_parse_math() for text in (axes._left_title, axes.yaxis.label)] == [False, False]


def test_a_picture_of_one_of_many_and_of_odd_points_can_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    for points in (
        [(7, 0.5)],
        [(0, 0)],
        [(number, number % 7) for number in range(200)],
        [(10**18, 9e18), (0, -9e18)],
        [(5, 1e-300), (5, 2e-300)],
        [(None, 1.0), (3, 1.0)],
    ):
        made = [ScorePoint(iteration, digest_of("a"), value, None) for iteration, value in points]
        draw_scores("运行 $x^2$ \u202e" * 20, "$\\frac{1}$ {" * 20, made, str(path))
        assert pixels(path).shape == (720, 1350, 3)
        path.unlink()
    with pytest.raises(Refused, match="no iteration is known"):
        draw_scores("r", "m", [ScorePoint(None, digest_of("a"), 1, None)], str(path))
    with pytest.raises(StorageError):
        draw_scores("r", "m", [ScorePoint(1, digest_of("a"), 1, None)], "/dev/full")
    assert not path.exists()
