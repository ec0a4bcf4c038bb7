"""`aorlta-reg lineage`: the tree to the letter, graphs that no name can break out of, one line for what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.checkpoints import read_checkpoint
from registry.cli import graphs, labels, tree
from registry.cli.output import printable
from registry.core import records
from registry.core.digest import Digest
from registry.core.lineage import Kind, Lineage, Link, Node
from registry.store import LocalStore
from tests.support.drawings import MERMAID_LINE, dot_tokens, made_up, node_of
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.values import digest_of

HOSTILE = 'a"]; n0 -> n1 \\" \\\x1b[31m\u202e\n<b>#quot;%%{init}%% |x| `md` end \\'


def score(subject: Digest, at: int, name: str, *, stopped: str | None = None, **scores: float) -> records.Record:
    facts = {
        "format": 1,
        "score_run": {"name": name, "path": "/runs/eval", "result": {"sha256": "e" * 64, "bytes": 1}, "config": None},
        "status": "stopped" if stopped else "completed",
        "stop": {"reason": stopped} if stopped else None,
        "scores": scores,
        "scored_at": f"2026-04-{at:02}T00:00:00.000000Z",
        "scored_by": "me@here",
    }
    return records.make(records.SCORE, subject, facts)


def comparison(subject: Digest, **verdicts: str) -> records.Record:
    facts = {
        "recipe": "fp32",
        "base_digest": "b" * 64,
        "conditions": {"torch": "2.9.0", "device": "cpu", "threads": 1},
        "compared_at": "2026-02-01T00:00:00.000000Z",
        "engines": [
            {"engine": name, "verdict": verdict, "served_digest": "c" * 64, "survival": None, "stated": {}}
            for name, verdict in verdicts.items()
        ],
    }
    return records.make(records.COMPARISON, subject, facts)


class Family:
    """A registry with runs that come of one another, and what its checkpoints and adapters are called in output."""

    def __init__(self, root: Path) -> None:
        self.cli = CommandLine(root / "home")
        self.short: dict[str, str] = {}
        self.paths: dict[str, Path] = {}
        registry = Registry(root / "home")

        def add(name: str, run: str | None, iteration: int, seed: int, **config: Any) -> Digest:
            base = {"base": "tiny", "revision": "87677bc5a5d723232e67", **config.pop("model", {})}
            saved = contents(lora_state(seed=seed), iteration=iteration)
            facts = {"run_id": run, "model": base, **config}
            path = write_checkpoint(root / name / "run", saved, iteration=iteration, config=facts)
            digest = registry.add(path).digest
            self.short[name] = digest.short
            self.short[f"{name} saved"] = read_checkpoint(str(path)).digest.short
            self.paths[name] = path
            return digest

        add("one", "first", 1, 1)
        best = add("best", "first", 3, 2)
        resume = {"checkpoint": str(read_checkpoint(str(self.paths["best"])).digest)}
        add("later", "first", 5, 3, resume=resume)
        add("zero", "second", 0, 2, model={"adapter": str(best)})
        add("child", "second", 1, 4, model={"adapter": str(best)})
        add("away", "third", 1, 5, resume=resume)
        add("lost", "fourth", 1, 6, model={"adapter": "sha256:" + "f" * 64})
        registry.set_alias("prod", best.hex)
        store = LocalStore(registry.home)
        for record in (
            comparison(best, **{"engine-0": "identical", "engine-1": "base-only"}),
            score(best, 1, "eval-1", accuracy=0.25, stopped="out of time"),
            score(best, 2, "eval-2", **{"pass@1": 0.41, "loss": 3}),
        ):
            store.put_record(record)
        assert registry.show(best.hex).score_runs

    def __call__(self, *arguments: str) -> str:
        """What the command prints, with names for digests."""
        text = self.cli.ok("lineage", *arguments)
        for name, short in self.short.items():
            text = text.replace(short, f"<{name}>")
        return text


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("family"))


WHOLE = """\
base tiny @ 87677bc5a5d7
└─ run first
   ├─ iteration 1  adapter <one>  [checkpoint <one saved>]
   └─ iteration 3  adapter <best>  prod  [checkpoint <best saved>]  *
      ├─ served identical: engine-0
      ├─ served base-only: engine-1
      ├─ score run eval-1: accuracy 0.25 (partial: stopped early, out of time)
      ├─ score run eval-2: loss 3, pass@1 0.41
      └─ run second, warm-started from it
         ├─ iteration 0  unchanged start <best>  [checkpoint <zero saved>]
         └─ iteration 1  adapter <child>  [checkpoint <child saved>]"""


def test_tree_is_as_promised(family: Family) -> None:
    assert family("prod") == WHOLE
    assert family("prod", "--up", "--down") == WHOLE
    assert family("prod", "--format", "tree") == WHOLE


def test_up_is_the_path_and_down_begins_with_what_was_asked_for(family: Family) -> None:
    assert family("second@1", "--up").splitlines() == [
        "base tiny @ 87677bc5a5d7",
        "└─ run first",
        "   └─ iteration 3  adapter <best>  prod  [checkpoint <best saved>]",
        "      └─ run second, warm-started from it",
        "         └─ iteration 1  adapter <child>  [checkpoint <child saved>]  *",
    ]
    assert family("first@3", "--down", "--depth", "0").splitlines() == [
        "adapter <best>  prod  *",
        "├─ served identical: engine-0",
        "├─ served base-only: engine-1",
        "├─ score run eval-1: accuracy 0.25 (partial: stopped early, out of time)",
        "└─ score run eval-2: loss 3, pass@1 0.41",
    ]


def test_run_is_shown_in_its_stretches(family: Family) -> None:
    assert family("first", "--depth", "0").splitlines() == [
        "base tiny @ 87677bc5a5d7",
        "├─ run first  *",
        "│  ├─ iteration 1  adapter <one>  [checkpoint <one saved>]",
        "│  └─ iteration 3  adapter <best>  prod  [checkpoint <best saved>]",
        "│     ├─ served identical: engine-0",
        "│     ├─ served base-only: engine-1",
        "│     ├─ score run eval-1: accuracy 0.25 (partial: stopped early, out of time)",
        "│     └─ score run eval-2: loss 3, pass@1 0.41",
        "└─ run first, resumed from its iteration 3  *",
        "   └─ iteration 5  adapter <later>  [checkpoint <later saved>]",
    ]


def test_checkpoint_is_shown_with_its_adapter_and_with_what_was_resumed_from_it(family: Family) -> None:
    assert family(str(family.paths["best"]), "--down").splitlines() == [
        "iteration 3  adapter <best>  prod  [checkpoint <best saved>]  *",
        "├─ served identical: engine-0",
        "├─ served base-only: engine-1",
        "├─ score run eval-1: accuracy 0.25 (partial: stopped early, out of time)",
        "├─ score run eval-2: loss 3, pass@1 0.41",
        "├─ run second, warm-started from it",
        "│  ├─ iteration 0  unchanged start <best>  [checkpoint <zero saved>]",
        "│  └─ iteration 1  adapter <child>  [checkpoint <child saved>]",
        "└─ run third, resumed from the checkpoint",
        "   └─ iteration 1  adapter <away>  [checkpoint <away saved>]",
    ]


def test_start_that_is_not_here_is_said_to_be_missing(family: Family) -> None:
    assert family("fourth").splitlines() == [
        "adapter ffffffffffff  (not in this registry)",
        "└─ run fourth, warm-started from it  *",
        "   └─ iteration 1  adapter <lost>  [checkpoint <lost saved>]",
        "base tiny @ 87677bc5a5d7",
        "└─ run fourth  (see above)",
    ]


def test_limit_says_how_many_more_there_are(family: Family) -> None:
    assert family("second", "--down", "--limit", "1").splitlines() == [
        "run second  *",
        "├─ iteration 0  unchanged start <best>  [checkpoint <zero saved>]",
        "└─ and 1 more",
    ]


def test_terminal_that_cannot_draw_boxes_gets_plain_signs(family: Family) -> None:
    plain = family.cli("lineage", "prod", PYTHONIOENCODING="ascii").out
    drawn = family.cli("lineage", "prod", PYTHONIOENCODING="utf-8").out
    assert plain.isascii()
    boxes = {"├─": "|-", "└─": "`-", "│": "|"}
    assert plain == re.sub("|".join(boxes), lambda found: boxes[found[0]], drawn)


def test_json_is_the_same_by_either_option_and_errors_are_json_too(family: Family) -> None:
    one = family.cli.ok("lineage", "prod", "--json")
    assert (
        one == family.cli.ok("lineage", "prod", "--format", "json") == family.cli.ok("lineage", "prod", "--format=json")
    )
    document = json.loads(one)
    keys = {node["key"] for node in document["nodes"]}
    assert {end for edge in document["edges"] for end in (edge["source"], edge["target"])} <= keys
    failed = family.cli("lineage", "nothing", "--format", "json")
    assert (failed.code, failed.out) == (3, "")
    assert json.loads(failed.err)["error"]["kind"] == "NotFound"


@pytest.mark.parametrize(
    ("arguments", "code", "mentioned"),
    [
        (("nothing",), 3, "nothing"),
        (("run:nothing",), 3, "nothing"),
        (("first@9",), 3, "first@9"),
        (("first@x",), 2, "RUN@ITER"),
        (("prod", "--json", "--format", "dot"), 2, "--format"),
        (("/nowhere/at/all",), 3, "/nowhere"),
        (("\udcff",), 3, "\\udcff"),
        (("run:\udcff",), 3, "\\udcff"),
        (("a\x1b[31m",), 3, "\\x1b"),
    ],
)
def test_what_cannot_be_told_exits_with_its_code_and_one_line(
    arguments: tuple[str, ...], code: int, mentioned: str, family: Family
) -> None:
    done = family.cli("lineage", *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1
    assert mentioned in done.err


def test_asking_an_empty_registry_makes_none(cli: CommandLine) -> None:
    done = cli("lineage", "prod")
    assert (done.code, done.out) == (3, "")
    assert not cli.home.exists()


def test_parent_option_is_what_the_lineage_shows(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path / "home")
    one = cli.ok("add", write_checkpoint(tmp_path / "first", contents(lora_state(seed=1))))
    child = write_checkpoint(tmp_path / "second", contents(lora_state(seed=2)))
    two = cli.ok("add", child, "--parent", "first@3")
    lines = cli.ok("lineage", two, "--up").splitlines()
    assert one[7:19] in lines[2]
    assert lines[3].strip() == "└─ run second, warm-started from it"
    stated = {"run_id": "second", "model": {"adapter": two}}
    other = write_checkpoint(tmp_path / "x" / "second", contents(lora_state(seed=3)), config=stated)
    done = cli("add", other, "--parent", one)
    assert (done.code, done.out) == (2, "")
    assert "another start" in done.err
    looped = {"run_id": "first", "model": {"adapter": two}}
    done = cli("add", write_checkpoint(tmp_path / "y" / "first", contents(lora_state(seed=1)), config=looped))
    assert (done.code, done.out) == (6, "")
    assert "descends" in done.err


# The drawings, of lineages that are made up


@pytest.fixture
def hostile() -> Lineage:
    return made_up(
        ("base b", "run r", Link.TRAINED),
        ("run r", "checkpoint c", Link.SAVED),
        ("checkpoint c", "adapter a", Link.EXPORTED),
        ("adapter a", "comparison x", Link.COMPARED),
        ("adapter a", "score s", Link.SCORED),
        asked="adapter a",
        name=HOSTILE,
    )


def named(lineage: Lineage, kind: Kind) -> Node:
    return next(node for node in lineage.nodes if node.kind is kind)


def test_dot_has_the_nodes_and_edges_and_no_name_is_more_than_a_label(hostile: Lineage) -> None:
    tokens = list(dot_tokens(graphs.dot(hostile)))
    words = [value for kind, value in tokens if kind == "word"]
    assert sum(kind == "arrow" for kind, _ in tokens) == len(hostile.edges)
    assert {word for word in words if re.fullmatch(r"n\d+", word)} == {f"n{each}" for each in range(6)}
    strings = [re.sub(r"\\(.)", r"\1", value[1:-1]) for kind, value in tokens if kind == "string"]
    assert len(strings) == 6 + len(hostile.edges)
    told = labels.label(named(hostile, Kind.RUN))
    assert told in strings, "the label is the name, as it may be printed"
    assert printable(HOSTILE) in told
    assert all(string.isprintable() for string in strings)


def test_mermaid_has_the_nodes_and_edges_and_no_name_is_more_than_a_label(hostile: Lineage) -> None:
    found = [MERMAID_LINE.fullmatch(line) for line in graphs.mermaid(hostile).splitlines()]
    assert all(found), graphs.mermaid(hostile)
    texts = [each["text"] for each in found if each and each["text"] is not None]
    assert len(texts) == 6
    told = {re.sub(r"#(\d+);", lambda code: chr(int(code[1])), text) for text in texts}
    assert labels.label(named(hostile, Kind.RUN)) in told


def test_no_name_brings_a_line_or_a_control_character_into_the_tree(hostile: Lineage) -> None:
    lines = tree.tree(hostile, tree.BOXES).split("\n")
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)


def test_huge_name_is_clipped_in_drawings() -> None:
    huge = Lineage(asked=("run r",), nodes=(node_of("run r", "x" * 1_000_000),), edges=())
    for drawing in (tree.tree(huge, tree.BOXES), graphs.dot(huge), graphs.mermaid(huge)):
        assert len(drawing) < 500


def chain(length: int) -> Lineage:
    edges = []
    for number in range(length):
        edges += [
            (f"run {number}", f"checkpoint {number}", Link.SAVED),
            (f"checkpoint {number}", f"adapter {number}", Link.EXPORTED),
            (f"adapter {number}", f"run {number + 1}", Link.WARM_STARTED),
        ]
    return made_up(*edges, asked="run 0")


@pytest.mark.parametrize("draw", [lambda it: tree.tree(it, tree.PLAIN), graphs.dot, graphs.mermaid])
def test_lineage_longer_than_pythons_stack_is_drawn(draw: Callable[[Lineage], str]) -> None:
    assert "run 1500" in draw(chain(1500))


def test_node_that_is_reached_twice_is_told_once() -> None:
    found = made_up(
        ("base b", "run x", Link.TRAINED),
        ("run x", "checkpoint x", Link.SAVED),
        ("checkpoint x", "adapter a", Link.EXPORTED),
        ("base b", "run y", Link.TRAINED),
        ("run y", "checkpoint y", Link.SAVED),
        ("checkpoint y", "adapter a", Link.EXPORTED),
        ("adapter a", "run z", Link.WARM_STARTED),
        ("base b", "run z", Link.TRAINED),
        asked="adapter a",
    )
    adapter, (x, y) = digest_of("adapter a").short, (digest_of(f"checkpoint {each}").short for each in "xy")
    assert tree.tree(found, tree.PLAIN).splitlines() == [
        "base b @ b",
        "|- run x",
        f"|  `- iteration 1  adapter {adapter}  a  [checkpoint {x}]  *",
        "|     `- run z, warm-started from it",
        "`- run y",
        f"   `- iteration 1  adapter {adapter}  a  (see above)  [checkpoint {y}]  *",
    ]


def test_base_is_drawn_where_nothing_else_leads_from_it_to_the_run() -> None:
    """Another base than its start's is no less the run's base."""
    found = made_up(
        ("base b", "run x", Link.TRAINED),
        ("run x", "checkpoint x", Link.SAVED),
        ("checkpoint x", "run y", Link.RESUMED),
        ("base b", "run y", Link.TRAINED),
        ("base c", "run y", Link.TRAINED),
        asked="run y",
    )
    drawn = {(edge.source, edge.target) for edge in labels.worth_drawing(found)}
    assert drawn == {("base b", "run x"), ("run x", "checkpoint x"), ("checkpoint x", "run y"), ("base c", "run y")}
