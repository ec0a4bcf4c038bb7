"""Tools that keep files durably by their content: what people might use instead, given only the finished adapters.

Each is asked for what its users ask for, without compression, into a repository that exists. `make bench-peers`
installs them; one that is missing is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.measure import Command

_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Peer:
    """A tool: how to make a repository, and how to store a directory in it.

    `durable` says whether it syncs what it stores; those that do not are shown, and are no bar.
    """

    name: str
    make: Callable[[Path], tuple[str, ...]]
    store: Callable[[Path, Path], tuple[str, ...]]
    durable: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, template: Path, place: Path, directory: Path) -> Command:
        """Store `directory` in a copy at `place` of the empty repository made at `template`, caches included."""
        template.mkdir(parents=True)
        subprocess.run(
            self.make(template / "repository"), env={**os.environ, **self._environment(template)}, check=True, **_QUIET
        )

        def clear() -> None:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(template, place, symlinks=True)

        return Command(self.store(place / "repository", directory), clear, self._environment(place))

    def _environment(self, place: Path) -> dict[str, str]:
        return {**self.environment, "HOME": str(place), "XDG_CACHE_HOME": str(place), "BORG_BASE_DIR": str(place)}


PEERS = (
    Peer(
        "ostree commit",
        make=lambda repository: ("ostree", "init", f"--repo={repository}", "--mode=bare-user-only"),
        store=lambda repository, directory: (
            "ostree",
            "commit",
            f"--repo={repository}",
            "--branch=adapters",
            "--owner-uid=0",
            "--owner-gid=0",
            "--canonical-permissions",
            f"--tree=dir={directory}",
        ),
    ),
    Peer(
        "borg create",
        make=lambda repository: ("borg", "init", "--encryption=none", str(repository)),
        store=lambda repository, directory: (
            "borg",
            "create",
            "--compression=none",
            f"{repository}::adapters",
            str(directory),
        ),
        environment={"BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"},
    ),
    Peer(
        "restic backup",
        make=lambda repository: ("restic", "init", "--repo", str(repository)),
        store=lambda repository, directory: (
            "restic",
            "backup",
            "--repo",
            str(repository),
            "--compression=off",
            str(directory),
        ),
        environment={"RESTIC_PASSWORD": "bench"},
    ),
)


def installed() -> list[Peer]:
    """The peers that this machine has."""
    return [peer for peer in PEERS if shutil.which(peer.name.partition(" ")[0]) is not None]
