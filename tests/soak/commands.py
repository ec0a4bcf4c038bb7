"""The commands that are killed and starved, each with the registry that it starts from and what it promises."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from registry import Registry
from tests.soak.invariants import Promises, whole
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run
from tests.support.trees import flip


@dataclass(frozen=True)
class World:
    """What the commands work on, below `root`. `digests` are those that the checkpoints give; a and b are twins."""

    root: Path
    checkpoints: dict[str, Path]
    digests: dict[str, str]
    score: Path

    @property
    def filled(self) -> Path:
        """A home with a, which `prod` names, and c, which `old` names."""
        return self.root / "filled"

    def file_digest(self, name: str) -> str:
        """The sha256 of a checkpoint's file, in hex."""
        return hashlib.sha256((self.checkpoints[name] / "trainer.pt").read_bytes()).hexdigest()


def make_world(root: Path) -> World:
    """Write the checkpoints, a score run of a, and the filled home."""
    seeds = {"a": 0, "b": 0, "c": 1, "d": 2}
    checkpoints = {
        name: write_checkpoint(root / name, contents(lora_state(modules=MODULES[:1], seed=seed)) | {"step": name})
        for name, seed in seeds.items()
    }
    apart = Registry(root / "apart")
    digests = {name: str(apart.add(checkpoint).digest) for name, checkpoint in checkpoints.items()}
    filled = Registry(root / "filled")
    filled.add(checkpoints["a"], alias="prod")
    filled.add(checkpoints["c"], alias="old")
    return World(root, checkpoints, digests, write_score_run(root / "score", result_of(digests["a"])))


@dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
        name: for the reports.
        arguments: of the command, where `out` is a directory that is not there, given the world and it.
        prepare: makes the home ready, which is a copy of the filled one.
        before: what holds whatever becomes of the command. after: what holds as well once it has ended well.
        fresh: it starts with no home at all.
        ends: exit codes of the command, where a fault struck it, beside that of storage.
        repeats: exit codes of the same command once more, after the first was killed.
        damaged: checkpoints whose stored adapter may be refused until then.
        gives: checkpoints of which `out` may hold the adapter.
        empties: it leaves an empty index, of which the next command says that it made it anew.
    """

    name: str
    arguments: Callable[[World, Path], tuple[str | Path, ...]]
    before: Callable[[World], Promises]
    after: Callable[[World], Promises]
    prepare: Callable[[World, Path, Path], None] = lambda _world, _home, _out: None
    fresh: bool = False
    ends: tuple[int, ...] = ()
    repeats: tuple[int, ...] = (0,)
    damaged: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    empties: bool = False


def _kept(
    *names: str,
    removed: tuple[str, ...] = (),
    parents: tuple[tuple[str, str], ...] = (),
    **aliases: str | None,
) -> Callable[[World], Promises]:
    def promises(world: World) -> Promises:
        return Promises(
            kept={world.digests[name] for name in names},
            removed={world.digests[name] for name in removed},
            aliases={alias: name and world.digests[name] for alias, name in aliases.items()},
            exports={(world.digests[name], world.file_digest(name)) for name in names},
            parents={(world.digests[child], world.digests[parent]) for child, parent in parents},
        )

    return promises


def _damage(world: World, home: Path, _out: Path) -> None:
    flip(Path(Registry(home).path(world.digests["a"])) / "adapter_model.safetensors")


def _add_d(world: World, home: Path, _out: Path) -> None:
    Registry(home).add(world.checkpoints["d"])


def _remove_c(world: World, home: Path, _out: Path) -> None:
    Registry(home).remove(world.digests["c"], force=True)


def _get_c(world: World, home: Path, out: Path) -> None:
    Registry(home).get(world.digests["c"], out)


def _lose_index(_world: World, home: Path, _out: Path) -> None:
    for file in home.glob("index.sqlite*"):
        file.unlink()


_FILLED = _kept("a", "c", prod="a", old="c")
ROWS = (
    Row("add", lambda w, _: ("add", w.checkpoints["a"]), _kept(), _kept("a"), fresh=True),
    Row("add second", lambda w, _: ("add", w.checkpoints["b"]), _FILLED, _kept("a", "b", "c", prod="a", old="c")),
    Row("add repair", lambda w, _: ("add", w.checkpoints["a"]), _FILLED, _FILLED, _damage, damaged=("a",)),
    Row("add removed", lambda w, _: ("add", w.checkpoints["c"]), _kept("a", prod="a"), _FILLED, _remove_c),
    Row(
        "add --alias",
        lambda w, _: ("add", w.checkpoints["d"], "--alias", "prod"),
        _kept("a", "c", old="c"),
        _kept("a", "c", "d", prod="d", old="c"),
    ),
    Row(
        "add --parent",
        lambda w, _: ("add", w.checkpoints["d"], "--parent", "prod"),
        _FILLED,
        _kept("a", "c", "d", parents=(("d", "a"),), prod="a", old="c"),
    ),
    Row("get", lambda _w, out: ("get", "prod", "--to", out), _FILLED, _FILLED, repeats=(0, 2), gives=("a",)),
    Row(
        "get --force",
        lambda _w, out: ("get", "prod", "--to", out, "--force"),
        _FILLED,
        _FILLED,
        _get_c,
        gives=("a", "c"),
    ),
    Row(
        "export",
        lambda w, out: ("export", w.checkpoints["d"], "--out", out),
        _FILLED,
        _FILLED,
        repeats=(0, 2),
        gives=("d",),
    ),
    Row(
        "alias set",
        lambda w, _: ("alias", "set", "prod", w.digests["c"]),
        _kept("a", "c", old="c"),
        _kept("a", "c", old="c", prod="c"),
    ),
    Row(
        "alias remove",
        lambda _w, _: ("alias", "remove", "prod"),
        _kept("a", "c", old="c"),
        _kept("a", "c", old="c", prod=None),
        repeats=(0, 3),
    ),
    Row("score add", lambda w, _: ("score", "add", w.score), _FILLED, _FILLED),
    Row(
        "rm --force",
        lambda w, _: ("rm", w.digests["c"], "--force"),
        _kept("a", prod="a"),
        _kept("a", removed=("c",), prod="a"),
        repeats=(0, 3),
    ),
    Row("reindex", lambda _w, _: ("reindex",), _FILLED, _FILLED, _lose_index),
    Row("db upgrade", lambda _w, _: ("db", "upgrade"), _FILLED, _FILLED, _lose_index, empties=True),
    Row(
        "verify --repair",
        lambda _w, _: ("verify", "--all", "--repair"),
        _FILLED,
        _FILLED,
        _damage,
        ends=(5,),
        damaged=("a",),
    ),
    Row(
        "gc",
        lambda _w, _: ("gc", "--keep-last", "0"),
        _FILLED,
        _kept("a", "c", removed=("d",), prod="a", old="c"),
        _add_d,
    ),
)


@dataclass(frozen=True)
class Place:
    """Where a command is run once."""

    home: Path
    out: Path


def prepare(row: Row, world: World, directory: Path) -> tuple[Place, tuple[str | Path, ...]]:
    """Make a home and a place for outputs anew in `directory`, and return them with the command's arguments."""
    shutil.rmtree(directory, ignore_errors=True)
    place = Place(directory / "home", directory / "outputs" / "out")
    place.out.parent.mkdir(parents=True)
    if not row.fresh:
        shutil.copytree(world.filled, place.home)
        row.prepare(world, place.home, place.out)
    home = () if row.name == "export" else ("--home", place.home)
    return place, (*row.arguments(world, place.out), *home)


def settled(row: Row, world: World, place: Place) -> Row:
    """The row as it is to be repeated: what `get` and `export` reserved was removed, as their message asks."""
    if row.gives and 2 in row.repeats and place.out.exists():
        if all(whole(place.out, world.digests[name]) for name in row.gives):
            place.out.rmdir()
        else:
            return row
    return row if 2 not in row.repeats else replace(row, repeats=(0,))
