"""`aorlta-reg find` and `list --sort`: what they print, and what they say where there is nothing to print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import Digest, NotFound, Refused, Registry
from registry.core import records
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint

HOSTILE = "org/\x1b[2Jb\u202ease\n"


@dataclass(frozen=True)
class Found:
    """A registry with four adapters, oldest first: three of run `a`, one of run `b` on a base with a hostile name."""

    cli: CommandLine
    checkpoints: list[Path]
    digests: list[str]

    def named(self, *arguments: str) -> list[int]:
        """Which adapters a command lists, by number, from both of its forms."""
        text = self.cli.ok(*arguments).splitlines()[1:]
        objects = [json.loads(line) for line in self.cli.ok(*arguments, "--json").splitlines()]
        numbers = [self.digests.index(each["digest"]) for each in objects]
        assert [line.split()[0] for line in text] == [self.digests[number][7:19] for number in numbers]
        return numbers


def score_run(digest: str, *, status: str = "completed", at: int = 1, **scores: float) -> records.Record:
    says = {
        "format": 1,
        "score_run": {"name": "eval", "path": "/e", "result": {"sha256": "e" * 64, "bytes": 1}, "config": None},
        "status": status,
        "stop": {"reason": "time"} if status == "stopped" else None,
        "scores": {name.replace("_", "@"): value for name, value in scores.items()},
        "scored_at": f"2026-04-{at:02}T00:00:00.000000Z",
        "scored_by": "someone@somewhere",
    }
    return records.make(records.SCORE, Digest.parse(digest), says)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    root = tmp_path_factory.mktemp("four")
    registry, checkpoints, digests = Registry(root / "home"), [], []
    for number, (run, iteration, alpha, base) in enumerate(
        (("a", 1, 8, "org/base"), ("a", 2, 8, "org/base"), ("a", 10, 16, "org/base"), ("b", 2, 8, HOSTILE))
    ):
        saved = contents(lora_state(seed=number), iteration=iteration, alpha=alpha)
        config = {"run_id": run, "model": {"base": base}}
        checkpoints.append(write_checkpoint(root / run, saved, iteration=iteration, config=config))
        digests.append(str(registry.add(checkpoints[-1]).digest))
    registry.set_alias("best", digests[1])
    for record in (
        score_run(digests[0], pass_1=0.25),
        score_run(digests[1], pass_1=0.75, at=2),
        score_run(digests[1], pass_1=0.1, at=3, status="stopped"),
        score_run(digests[3], pass_1=0.5, loss=2),
    ):
        LocalStore(registry.home).put_record(record)
    registry.reindex()
    return Found(CommandLine(root / "home"), checkpoints, digests)


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ("", [3, 2, 1, 0]),
        ("--run a", [2, 1, 0]),
        ("--run a --sort oldest", [0, 1, 2]),
        ("--run a --reverse", [0, 1, 2]),
        ("--run a --limit 1", [2]),
        ("--run a --iter 2", [1]),
        ("--iter 2", [3, 1]),
        ("--iter 2..", [3, 2, 1]),
        ("--iter ..2 --sort iteration", [1, 3, 0]),
        ("--sort iteration --limit 1", [2]),
        ("--base org/base", [2, 1, 0]),
        ("--r 4", [3, 2, 1, 0]),
        ("--r 8", []),
        ("--alpha 16", [2]),
        ("--verdict none", [3, 2, 1, 0]),
        ("--verdict identical", []),
        ("--alias best", [1]),
        ("--score pass@1>0.25", [3, 1]),
        ("--score pass@1>=0.25 --score loss<=2", [3]),
        ("--score pass@1<0.2", []),
        ("--sort score:pass@1", [1, 3, 0]),
        ("--sort score:pass@1 --reverse --limit 2", [0, 3]),
        ("--since 2020-01-01", [3, 2, 1, 0]),
        ("--until 2020-01-01", []),
    ],
)
def test_find_lists_what_meets_all_that_is_asked_for(asked: str, numbers: list[int], four: Found) -> None:
    found = four.named("find", *asked.split())
    if asked == "--iter ..2 --sort iteration":
        assert (set(found[:2]), found[2:]) == ({1, 3}, [0]), "which of two is first is for their digests to say"
    else:
        assert found == numbers


def test_a_checkpoint_is_named_by_digest_directory_or_file(four: Found) -> None:
    checkpoint = four.checkpoints[2]
    digest = json.loads(four.cli.ok("show", "--json", four.digests[2]))["exports"][0]["checkpoint_digest"]
    for said in (digest, digest[7:].upper(), str(checkpoint), str(checkpoint / "trainer.pt")):
        assert four.named("find", "--checkpoint", said) == [2]
    done = four.cli("find", "--checkpoint", str(checkpoint / "missing"))
    assert (done.code, done.out) == (3, "")


def test_tensors_are_found_by_their_digest(four: Found) -> None:
    tensors = json.loads(four.cli.ok("show", "--json", four.digests[0]))["tensor_digest"]
    assert four.named("find", "--tensors", tensors) == [0]


def test_one_object_a_line_as_show_prints_it(four: Found) -> None:
    done = four.cli("find", "--score", "pass@1>0.3", "--json")
    assert done.err == ""
    assert all(": " not in line[:200] for line in done.out.splitlines())
    shown = [json.loads(four.cli.ok("show", "--json", four.digests[number])) for number in (3, 1)]
    assert all(each.pop("engines") for each in shown), "which is read from the adapter itself"
    assert [json.loads(line) for line in done.out.splitlines()] == shown


def test_text_has_a_column_for_each_metric_asked_for(four: Found) -> None:
    asked = ("--score", "pass@1>0.25", "--score", "pass@1<1", "--sort", "score:loss")
    header, row = four.cli.ok("find", *asked).splitlines()
    assert header.split()[-3:] == ["VERDICT", "loss", "pass@1"]
    assert row.split()[-3:] == ["-", "2", "0.5"]
    listed = four.cli.ok("list", "--sort", "score:pass@1").splitlines()
    assert [line.split()[-1] for line in listed] == ["pass@1", "0.75", "0.5", "0.25"]


def test_list_sorts_as_find_does_and_keeps_its_document(four: Found) -> None:
    for asked in (["--sort", "oldest"], ["--sort", "score:pass@1", "--reverse"], ["--sort", "iteration"]):
        listed = json.loads(four.cli.ok("list", "--json", *asked))["adapters"]
        assert [four.digests.index(each["digest"]) for each in listed] == four.named("find", *asked)


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        (("--run", "x\x1b[2J"), r"no run is known as 'x\x1b[2J'"),
        (("--base", "\u202egro"), r"no base is known as '\u202egro'"),
        (("--score", "passed>1"), "no metric is known as 'passed'"),
        (("--sort", "score:passed"), "no metric is known as 'passed'"),
        (("--alias", "worst"), "no alias is called 'worst'"),
    ],
)
def test_what_is_not_known_finds_nothing_and_is_said(asked: tuple[str, str], note: str, four: Found) -> None:
    done = four.cli("find", *asked)
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 1, note + "\n")
    done = four.cli("find", *asked, "--json")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_names_that_a_terminal_would_obey_are_escaped(four: Found) -> None:
    out = four.cli.ok("find", "--base", HOSTILE)
    assert r"org/\x1b[2Jb\u202ease\n" in out
    assert not set(out) & {"\x1b", "\u202e"}
    assert "\x1b" not in four.cli("find", "--sort", "score:\x1b[2J").out


@pytest.mark.parametrize(
    "asked",
    [
        ("--iter", "9..1"),
        ("--score", "pass@1"),
        ("--since", "soon"),
        ("--until", "2026-02-30"),
        ("--verdict", "good"),
        ("--sort", "size"),
        ("--tensors", "abc"),
        ("--alias", "abc"),
        ("--r", str(2**70)),
        ("--alpha", "nan"),
    ],
)
def test_what_cannot_be_asked_for_exits_2_and_is_one_error(asked: tuple[str, str], four: Found) -> None:
    done = four.cli("find", *asked, "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["error"]["message"]


def test_a_name_that_is_no_text_is_not_known(four: Found) -> None:
    for option, said in (
        ("--run", "\udcff"),
        ("--base", "\udcff"),
        ("--sort", "score:\udcff"),
        ("--score", "\udcff>1"),
    ):
        done = four.cli("find", option, said)
        assert (done.code, len(done.out.splitlines())) == (0, 1)
        assert "is known as" in done.err


def test_the_limit_says_that_there_may_be_more(four: Found) -> None:
    assert "the newest 2; --limit N shows more" in four.cli("find", "--limit", "2").err
    assert "the first 2; --limit N shows more" in four.cli("list", "--sort", "oldest", "--limit", "2").err
    assert four.cli("find", "--limit", "5").err == ""


def test_find_in_a_registry_that_does_not_exist_is_empty_and_makes_none(cli: CommandLine) -> None:
    done = cli("find", "--run", "x", "--json")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(cli.ok("find").splitlines()) == 1
    assert not cli.home.exists()


def test_python_asks_with_the_same_words(four: Found) -> None:
    notes: list[str] = []
    registry = Registry(four.cli.home, note=notes.append)
    found = registry.find(run="a", iterations=(1, 9), scores=["pass@1>0.4"], since="2020-01-01", verdict="none")
    assert [str(each.digest) for each in found] == [four.digests[1]]
    assert [str(each.digest) for each in registry.find(iterations=10, checkpoint=four.checkpoints[2])] == four.digests[
        2:3
    ]
    assert registry.find(run="none") == []
    assert notes == ["no run is known as 'none'"]
    with pytest.raises(Refused, match="no iteration lies between"):
        registry.find(iterations=(9, 1))
    with pytest.raises(NotFound, match="no such checkpoint"):
        registry.find(checkpoint="nowhere")
