"""Whatever stands in files and arguments, no command prints what a terminal would obey, or a line without end."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from safetensors.torch import save_file

from registry import Registry
from registry.cli import plots
from registry.cli.app import app
from registry.cli.output import CELL, LINE, printable, table
from registry.core import records
from registry.core.comparison import Comparison, EngineResult, State, TensorResult, Verdict
from registry.store import LocalStore
from tests.support.many import run_each
from tests.support.process import CommandLine, Finished
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.values import digest_of

ATTACKS = {
    "clear": "\x1b[2J\x1b[H",
    "link": "\x1b]8;;http://example.org\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "title": "\x1b]0;title\x07\x9b31m\x9d0;t\x9c",
    "overwrite": "good\rbad\b\b\b\x7f",
    "lines": "one\ntwo\tthree\x0b\x0c\x85\u2028\u2029",
    "bidi": "\u202egnp.exe\u202d\u2066\u2067\u2068\u2069\u061c\u200e\u200f",
    "invisible": "a\u200b\u200c\u200d\u2060\ufeff\u00adb\U000e0041",
    "flood": "e" + "\u0301\u0489" * 400,
    "markup": "[red]x[/red] %(message)s {0} $x^2$ \\x1b[2J &lt;",
}
EVERYTHING = "".join(ATTACKS.values())
HUGE = "y" * 30_000


def obeyed(text: str) -> set[str]:
    """The characters of some output that do more than stand there."""
    found = {char for char in text if char != "\n" and not char.isprintable()}
    found |= {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char != "\n"}
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks > 4:
            found.add(char)
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_printable_does_nothing_and_stays_on_its_line(name: str) -> None:
    shown = printable(ATTACKS[name])
    assert obeyed(shown) == set()
    assert "\n" not in shown
    assert obeyed(printable(EVERYTHING)) == set()


@pytest.mark.parametrize("text", ["läuft-日本", "Việt Nam", "Vie\u0323\u0302t", "हिन्दी", "ภาษาไทย", "עברית", "🙂"])
def test_names_in_any_script_are_printed_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_a_cell_of_any_length_leaves_the_table_readable() -> None:
    lines = table(("A", "B"), [(HUGE, "end"), ("x", "end")]).splitlines()
    assert [len(line) for line in lines[1:]] == [len(lines[1])] * 2
    assert len(lines[1]) < CELL + 100
    assert lines[1].startswith("yyy")
    assert lines[1].endswith("yyy  end")
    assert "characters" in lines[1]


@dataclass(frozen=True)
class Museum:
    """A registry in which every name that a file can give is hostile."""

    cli: CommandLine
    root: Path
    digest: str
    other: str


def _hostile_config(name: str) -> dict[str, Any]:
    return {"run_id": name, "model": {"base": name, "revision": name, "adapter": name}, "resume": {"checkpoint": name}}


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory) -> Museum:
    root = tmp_path_factory.mktemp("museum")
    home = root / "home"
    registry, store = Registry(home), LocalStore(str(home))
    name = EVERYTHING
    directory = root / ("d" + name[:60].replace("/", "_"))
    digest = registry.add(write_checkpoint(directory, config=_hostile_config(name))).digest
    huge = write_checkpoint(root / "huge", contents(lora_state(seed=5)), config=_hostile_config(HUGE))
    other = registry.add(huge).digest
    registry.set_alias("best", digest.hex)
    engine = {
        "engine": name,
        "verdict": "different",
        "served_digest": digest.hex,
        "survival": None,
        "stated": {"rounding": name},
    }
    compared = {
        "recipe": name,
        "engines": [engine, {**engine, "engine": HUGE}],
        "base_digest": digest.hex,
        "conditions": {"torch": name, "device": name, "threads": 1},
        "compared_at": name,
        "passed": False,
    }
    moved = {"alias": "best", "sequence": 2, "from": digest.hex, "to": digest.hex, "moved_at": name, "moved_by": name}
    scored = {
        "status": "stopped",
        "stop": {"reason": name},
        "scores": {name: 0.5, HUGE: 1, "plain": 2},
        "score_run": {"name": name, "path": name, "result": {"sha256": digest_of("r").hex}},
        "scored_at": name,
        "scored_by": name,
    }
    for kind, predicate in ((records.COMPARISON, compared), (records.ALIAS, moved), (records.SCORE, scored)):
        store.put_record(records.make(kind, digest, predicate))
    base = root / f"base{name[:40].replace('/', '_')}"
    base.mkdir()
    modules = {key.rpartition(".lora_")[0] for key in lora_state()}
    save_file({f"{m}.weight": torch.zeros(24, 16) for m in modules}, base / "model.safetensors")
    served = root / "served-weights.json"
    tensors = {f"{m}.weight": {"sha256": digest_of(m).hex, "shape": [24, 16]} for m in modules}
    tensors |= {name: {"sha256": digest_of("n").hex, "shape": [1]}, HUGE: {"sha256": digest_of("h").hex, "shape": [1]}}
    served.write_text(json.dumps({"engine": "e", "tensors": tensors}))
    (root / "broken.json").write_text(json.dumps({"engine": name, "tensors": {name: 1}}))
    (root / "run_result.json").write_text(json.dumps({"status": name, "model": {"adapter": name}, "scores": {name: 1}}))
    return Museum(CommandLine(home), root, digest.hex, other.hex)


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the program, whatever commands there are, by its words."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        names = command.list_commands(None) if hasattr(command, "list_commands") else ()
        if not names:
            yield words, command
        for name in names:
            yield from walk(command.get_command(None, name), (*words, name))

    yield from walk(typer.main.get_command(app), ())


COMMANDS = dict(commands())


def arguments_of(command: Any, value: Callable[[str], str]) -> list[str]:
    """What the command needs; `value` gives the text for a metavariable."""
    found: list[str] = []
    for parameter in command.params:
        name = (parameter.metavar or parameter.name).upper()
        if parameter.param_type_name == "argument":
            found.append(value(name))
        elif parameter.required:
            found += [parameter.opts[0], value(name)]
        elif "--until-idle" in parameter.opts:  # or it would wait for what is named
            found += ["--until-idle", "0"]
    return found


def sound(museum: Museum) -> Callable[[str], str]:
    """Arguments that lead a command to hostile contents."""

    def value(name: str) -> str:
        if "REF" in name:
            return museum.digest
        if "CKPT" in name:
            return str(next(museum.root.glob("d*/ckpt/iter-3")))
        if "DIR" in name or "PATH" in name or "OUT" in name:
            return str(museum.root / "nowhere")
        return "vllm" if name == "ENGINE" else "best"

    return value


def assert_harmless(command: Sequence[str], done: Finished) -> None:
    assert obeyed(done.out + done.err) == set(), command
    assert "Traceback" not in done.err, command
    assert done.code in (0, 2, 3, 5, 6, 7), (command, done)
    if "--json" in command:
        documents = done.out.splitlines() if command[0] == "find" else [done.out] if done.out else []
        assert all(json.loads(document) for document in documents)
    else:
        assert max(map(len, (done.out + done.err).splitlines()), default=0) < LINE + 1000, command


def test_no_command_prints_what_a_terminal_obeys_of_what_is_stored(museum: Museum) -> None:
    asked = []
    for words, command in COMMANDS.items():
        arguments = [*words, *arguments_of(command, sound(museum))]
        asked += [arguments, [*arguments, "--json"]]
    results = run_each(museum.cli, asked)
    for arguments, done in zip(asked, results, strict=True):
        assert_harmless(arguments, done)
    assert any("\\x1b[2J" in done.out for done in results)
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("name", [EVERYTHING, HUGE], ids=["all", "huge"])
def test_no_command_prints_what_a_terminal_obeys_of_its_arguments(name: str, museum: Museum) -> None:
    asked = []
    for words, command in COMMANDS.items():
        required = [*words, *arguments_of(command, lambda _: name)]
        asked += [required, [*required, f"--{name}"], [*required, f"-{name}"]]
        if name == HUGE:  # in every place where one is needed; the other tries every option too
            continue
        options = [each for each in command.params if each.param_type_name == "option" and not each.is_flag]
        asked += [[*required, option.opts[0], name] for option in options]
    results = run_each(museum.cli, asked)
    for arguments, done in zip(asked, results, strict=True):
        assert_harmless(arguments, done)
    assert 2 in {done.code for done in results}


def test_compare_and_its_picture_show_hostile_names_escaped(museum: Museum, tmp_path: Path) -> None:
    base, plot = next(museum.root.glob("base*")), tmp_path / "plot.png"
    done = museum.cli(
        "compare", museum.digest, "--base", base, "--served", museum.root / "served-weights.json", "--plot", plot
    )
    assert done.code == 5, done
    assert "tensors are not of the base's names" in done.out
    assert obeyed(done.out + done.err) == set()
    assert done.err.count("\n") == 1
    assert max(map(len, done.out.splitlines())) < LINE
    assert plot.read_bytes()[:4] == b"\x89PNG"
    broken = museum.cli("compare", museum.digest, "--base", base, "--served", museum.root / "broken.json")
    assert broken.code == 2
    assert obeyed(broken.err) == set()


def test_json_holds_names_whole(museum: Museum) -> None:
    shown = json.loads(museum.cli.ok("show", "--json", museum.other))
    assert shown["exports"][0]["run"] == HUGE
    listed = museum.cli.ok("list")
    assert HUGE not in listed
    assert "yyy" in listed


def test_a_picture_of_endless_layers_and_names_is_drawn_in_part(tmp_path: Path) -> None:
    names = [f"model.layers.{number}.0{number}{EVERYTHING}" for number in range(5)]  # labels are slow to lay out
    names += [f"model.layers.{number}.{number}" for number in range(350)]
    names += [f"model.layers.{'9' * 5000}.x", "model.layers.\u0661.x", HUGE]
    tensors = tuple(TensorResult(name, State.DIFFERENT, 4, 4, 2, 1.0, 0.5) for name in names)
    engine = EngineResult(EVERYTHING, Verdict.DIFFERENT, digest_of("served"), {}, {}, None, tensors, {})
    plots.draw_comparison(
        Comparison(Verdict.DIFFERENT, (engine,), "$x^$", digest_of("base"), {}, False), str(tmp_path / "plot.png")
    )
    size = (tmp_path / "plot.png").read_bytes()[16:24]
    assert max(int.from_bytes(size[:4]), int.from_bytes(size[4:])) <= 60 * 150
