"""In which order the commands that change what is known of an adapter reach the disk: the record is announced, then
written, then its name; only then does anything go, and the index comes last. (`add` is in test_crash.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry import Registry
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run
from tests.support.strace import needs_strace, trace

CALLS = ("rename", "fsync", "fdatasync", "pwrite64", "unlink", "unlinkat")


@needs_strace
@pytest.mark.parametrize("command", ["alias set", "alias remove", "score add", "rm", "gc"])
def test_record_is_durable_before_anything_goes_and_the_index_comes_last(
    command: str, cli: CommandLine, tmp_path: Path
) -> None:
    registry = Registry(cli.home)
    added = registry.add(write_checkpoint(tmp_path / "run", contents(lora_state()))).digest
    if command == "alias remove":
        registry.set_alias("prod", added.hex)
    arguments: tuple[str | Path, ...] = {
        "alias set": ("alias", "set", "prod", added.hex),
        "alias remove": ("alias", "remove", "prod"),
        "score add": ("score", "add", write_score_run(tmp_path / "score", result_of(added.hex))),
        "rm": ("rm", added.hex),
        "gc": ("gc", "--keep-last", "0"),
    }[command]
    calls = trace(cli, *arguments, log=tmp_path / "log", calls=CALLS)

    def first(name: str, what: str, after: int = -1) -> int:
        place = next((at for at, call in enumerate(calls) if at > after and call[0] == name and what in call[1]), None)
        assert place is not None, f"no {name} of {what} after {calls[after]}"
        return place

    at = -1
    records = f"{cli.home}/records/{added.hex[:2]}/{added.hex}"
    for directory in (f"{cli.home}/pending", records):  # what is pending is finished by whoever comes next
        written = first("fsync", "/record.json>", at)
        named = first("rename", f'"{directory}/', written)
        assert calls[named][1].split('"')[1] in calls[written][1], "it is this file that was synced"
        at = first("fsync", f"<{directory}>", named)
    if command in ("rm", "gc"):
        moved = first("rename", f'"{cli.home}/adapters/{added.hex[:2]}/{added.hex}"')
        assert moved > at, "the record is there before its adapter goes"
        at = first("fsync", f"<{cli.home}/adapters/{added.hex[:2]}>", moved)
        assert first("unlinkat", "adapter_model.safetensors") > at
    log = f"<{cli.home}/index.sqlite-wal>"
    rows = first("pwrite64", log)
    assert rows > at, "the index comes last"
    settled = first("unlink", f'"{cli.home}/pending/')
    rows = max(at for at, call in enumerate(calls[:settled]) if call[0] == "pwrite64" and log in call[1])
    assert first("fdatasync", log, rows) < settled, "and it stays announced until the index has it"
