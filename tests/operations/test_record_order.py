"""Every record reaches the disk before its name does, its name before the files that it tells of go, and all of that
before the index: what real processes asked the kernel for, in that order."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import Registry
from tests.support.process import CommandLine
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run
from tests.support.strace import needs_strace, trace

CALLS = ("write", "fsync", "fdatasync", "rename", "unlink", "unlinkat", "pwrite64")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with two adapters, of which `kept` names one, and the hex of the other."""
    root = tmp_path_factory.mktemp("filled")
    registry = Registry(root / "home")
    runs = [
        write_checkpoint(root / f"r{seed}", contents(lora_state(modules=MODULES[:1], seed=seed))) for seed in range(2)
    ]
    digest = registry.add(runs[0]).digest.hex
    registry.add(runs[1], alias="kept")
    write_score_run(root / "score", result_of(f"sha256:{digest}"))
    return root / "home", digest


COMMANDS: dict[str, tuple[str, Callable[[Path, str], tuple[str | Path, ...]]]] = {
    "alias set": ("alias", lambda _, digest: ("alias", "set", "prod", digest)),
    "score add": ("score", lambda home, _: ("score", "add", home.parent / "score")),
    "rm": ("removal", lambda _, digest: ("rm", digest)),
    "gc": ("removal", lambda *_: ("gc", "--keep-last", "0")),
}


@needs_strace
@pytest.mark.parametrize("command", COMMANDS)
def test_record_is_on_the_disk_before_the_index_has_it_and_is_announced_until_then(
    command: str, filled: tuple[Path, str], cli: CommandLine, tmp_path: Path
) -> None:
    kind, arguments = COMMANDS[command]
    shutil.copytree(filled[0], cli.home)
    calls = trace(cli, *arguments(*filled), log=tmp_path / "log", calls=CALLS)
    home, digest = str(cli.home), filled[1]

    def only(name: str, what: str) -> int:
        """Where the one such call is that succeeded: the order of several would prove nothing."""
        found = [at for at, call in enumerate(calls) if call[0] == name and what in call[1] and " = -1 " not in call[1]]
        assert len(found) == 1, f"{name} of {what}: {found}"
        return found[0]

    named: list[int] = []
    for place in (f"{home}/pending", f"{home}/records/{digest[:2]}/{digest}"):
        renamed = only("rename", f', "{place}/{kind}-')
        staged = calls[renamed][1].split('"')[1]
        assert only("write", f"<{staged}>") < only("fsync", f"<{staged}>") < renamed
        named += [renamed, only("fsync", f"<{place}>")]
    assert named == sorted(named), "announced durably, then recorded durably"

    settled = only("unlink", f'"{home}/pending/{kind}-')
    wal = f"<{home}/index.sqlite-wal>"
    rows, syncs = (  # what SQLite does as it closes comes after
        [at for at, call in enumerate(calls[:settled]) if call[0] == name and wal in call[1]]
        for name in ("pwrite64", "fdatasync")
    )
    assert named[-1] < rows[0] <= rows[-1] < syncs[-1] < settled

    if kind == "removal":
        final = f"{home}/adapters/{digest[:2]}/{digest}"
        hidden = only("rename", f'"{final}", "{home}/staging/')
        deleted = [at for at, call in enumerate(calls) if call[0] == "unlinkat" and re.search(f"/{digest}>", call[1])]
        assert len(deleted) == 3, "the files of an adapter"
        assert named[-1] < hidden < only("fsync", f"<{os.path.dirname(final)}>") < deleted[0] < deleted[-1] < rows[0]
    else:
        assert Registry(cli.home).path(digest)
