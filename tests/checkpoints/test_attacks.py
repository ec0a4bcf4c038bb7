"""Attacks on readers of models that were published, each as a whole checkpoint: nothing runs, nothing is started, and
the file is refused or read as what it says. An audit hook watches what the interpreter is asked to do.

The names are those of the write-ups: "nullifAI" (ReversingLabs, 2025: a pickle that breaks off behind its payload),
PickleScan's and Fickling's bypasses (CVE-2025-1716 and after: other names for what runs code, CRC and flag bits that
one zip reader minds and another does not, records that come twice), and the pickles that torch's own rebuilding runs.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.fuzz.mutate import zipped
from tests.support.runs import contents, lora_state

WATCHED = """
import json, sys
from pathlib import Path
from registry.checkpoints import read_checkpoint
from registry.core.errors import RegistryError

seen = []
QUIET = {"builtins.id", "object.__getattr__", "object.__setattr__", "sys._getframe", "os.listdir"}
def hook(event, arguments):
    if event in ("pickle.find_class", "import") or event in QUIET:
        return
    if event == "open":
        mode = str(arguments[1] or "r"), int(arguments[2] or 0)
        if not set(mode[0]) & set("wxa+") and not mode[1] & 0o1103:
            return
    seen.append([event, ascii(arguments)[:200]])
before = set(sys.modules)
outcomes = {}
files = sorted(Path(sys.argv[1]).glob("*/trainer.pt"))
read_checkpoint(str(files[0]))  # whatever is loaded late is loaded now
before = set(sys.modules)
sys.addaudithook(hook)
for path in files:
    try:
        checkpoint = read_checkpoint(str(path))
        outcomes[path.parent.name] = f"read {len(checkpoint.lora.pairs)}"
    except RegistryError as error:
        outcomes[path.parent.name] = f"{error.kind}: {error}"
done = list(seen)
print(json.dumps({"outcomes": outcomes, "events": done, "imported": sorted(set(sys.modules) - before)}))
"""


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def short(value: str) -> bytes:
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def called(module: str, name: str, *arguments: str) -> bytes:
    """A call, as its value on the stack is dropped again."""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(map(text, arguments)) + b"tR0"


def payloads(canary: Path) -> dict[str, bytes]:
    """Pickle bodies that would make the canary, between the protocol and what the checkpoint really holds."""
    command, code = f"touch {canary}", f"open({str(canary)!r}, 'w')"
    stacked = b"".join((short("os"), short("system"), b"\x93", short(command), b"\x85R0"))
    return {
        "os.system": called("os", "system", command),
        "posix.system": called("posix", "system", command),
        "nt.system": called("nt", "system", command),
        "subprocess.run": called("subprocess", "run", command),
        "subprocess.getoutput": called("subprocess", "getoutput", command),
        "builtins.eval": called("builtins", "eval", code),
        "builtins.exec": called("builtins", "exec", code),
        "__builtin__.eval": called("__builtin__", "eval", code),
        "webbrowser": called("webbrowser", "open", "http://localhost"),
        "runpy": called("runpy", "run_path", str(canary)),
        "pip": called("pip", "main", "install"),
        "timeit": called("timeit", "timeit", code),
        "cProfile": called("cProfile", "run", code),
        "pdb": called("pdb", "run", code),
        "code.interact": called("code", "InteractiveInterpreter"),
        "pty.spawn": called("pty", "spawn", "/bin/true"),
        "asyncio": called("asyncio.unix_events", "_UnixSubprocessTransport._start", command),
        "torch.load": called("torch", "load", str(canary)),
        "torch.hub": called("torch.hub", "load", "a/b", "c"),
        "torch.jit": called("torch.jit", "load", str(canary)),
        "torch._dynamo": called("torch._dynamo.guards", "GuardBuilder.get", code),
        "torch.utils.cpp": called("torch.utils.cpp_extension", "load_inline", "x", code),
        "torch.storage": called("torch.storage", "_load_from_bytes", "x"),
        "numpy.load": called("numpy", "load", str(canary)),
        "numpy.runstring": called("numpy.testing._private.utils", "runstring", code),
        "pickle.loads": called("pickle", "loads", "x"),
        "pickle of a pickle": b"c_pickle\nloads\n" + text("cos\nsystem\n") + b"\x85R0",
        "importlib": called("importlib", "import_module", "antigravity"),
        "operator": b"coperator\nmethodcaller\n(" + text("system") + text(command) + b"tRcos\n__name__\n\x85R0",
        "functools": b"cfunctools\npartial\n(cos\nsystem\n" + text(command) + b"tR)R0",
        "map": b"cbuiltins\nlist\ncbuiltins\nmap\ncos\nsystem\n(" + text(command) + b"l\x86R\x85R0",
        "copyreg": b"ccopyreg\nadd_extension\n(" + text("os") + text("system") + b"K\1tR0",
        "copyreg reconstructor": b"ccopyreg\n_reconstructor\n(csubprocess\nPopen\ncbuiltins\nobject\nNtR0",
        "newobj": b"csubprocess\nPopen\n" + text(command) + b"\x85\x810",
        "newobj_ex": b"csubprocess\nPopen\n" + text(command) + b"\x85}" + text("shell") + b"\x88s\x920",
        "inst": b"(" + text(command) + b"ios\nsystem\n0",
        "obj": b"(cos\nsystem\n" + text(command) + b"o0",
        "stack global": stacked,
        "stack global of a path": short("registry.checkpoints.source")
        + short("os.system")
        + b"\x93"
        + short(command)
        + b"\x85R0",
        "stack global of odd text": b"\x8d"
        + struct.pack("<Q", 3)
        + b"o\0s"
        + short("sys\ttem")
        + b"\x93"
        + short(command)
        + b"\x85R0",
        "build": b"ctypes\nSimpleNamespace\n)R}" + text("__class__") + b"cos\nsystem\nsb0",
        "build of state": b"cfunctools\npartial\n)R(cos\nsystem\n(" + text(command) + b"t}}tb)R0",
        "setitem of globals": b"cregistry.checkpoints.pickled\nKNOWN\n" + text("a.b") + b"cos\nsystem\ns0",
        "rebuild type": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\n"
        + text(command)
        + b"\x85NtR0",
        "rebuild parameter": b"ctorch._utils\n_rebuild_parameter\n(cos\nsystem\n" + text(command) + b"\x85R\x88}tR0",
        "persistent text": b"P" + command.encode() + b"\n0",
        "persistent tuple": b"(" + text("storage") + b"cos\nsystem\n" + text("0") + text("cpu") + b"K\1tQ0",
        "persistent path": b"("
        + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text(str(canary))
        + text("cpu")
        + b"K\1tQ0",
        "extension": b"\x82\x010",
        "protocol 0": f"cos\nsystem\n(S'{command}'\ntR0".encode(),
        "text opcodes": b"(lp0\nI01\naS'x'\na0",
    }


def sound() -> dict[str, bytes]:
    """The records of a sound checkpoint."""
    file = io.BytesIO()
    torch.save(contents(lora_state(modules=("a.q_proj",))), file)
    with zipfile.ZipFile(file) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(records: dict[str, bytes], *more: tuple[str, bytes]) -> bytes:
    return zipped([*((f"archive/{name}", data) for name, data in records.items()), *more])


def files(canary: Path) -> dict[str, bytes]:
    """Whole files, by the name of the attack."""
    records = sound()
    start, rest = records["data.pkl"][:2], records["data.pkl"][2:]
    plain = packed(records)
    system = called("os", "system", f"touch {canary}")
    hostile = packed({**records, "data.pkl": start + system + rest})
    found = {name: packed({**records, "data.pkl": start + body + rest}) for name, body in payloads(canary).items()}
    broken = start + system + b"\xff broken"
    found |= {
        "0 sound": plain,
        "nullifAI": packed({**records, "data.pkl": broken}),
        "nullifAI raw": broken,
        "payload behind the end": packed({**records, "data.pkl": records["data.pkl"] + b"\x80\x02" + system + b"N."}),
        "protocol 0 payload behind the end": packed({**records, "data.pkl": records["data.pkl"] + b"cos\nsystem\n."}),
        "two pickles": packed(records, ("archive/data.pkl", start + system + b"N.")),
        "pickle in another folder": packed(records, ("other/data.pkl", start + system + b"N.")),
        "pickle in another case": packed(records, ("archive/DATA.PKL", start + system + b"N.")),
        "legacy pickle in front": b"\x80\x02" + system + b"N." + plain,
        "zip behind a zip": plain + hostile,
        "trailing data": plain + b"\x80\x02" + system + b"N.",
        "no checksums": without_checksums(hostile),
        "encrypted by its flags": flagged(hostile, 1),
        "strong encryption": flagged(hostile, 1 << 6),
        "seven-zip": b"7z\xbc\xaf\x27\x1c" + hostile,
        "python code": packed({**records, "code/__torch__.py": b"import os"}),
        "constants": packed({**records, "constants.pkl": start + system + b"N."}),
        "other name inside": hostile.replace(b"archive/data.pkl", b"archive/data.pkx", 1),
        "billion laughs of tuples": packed({**records, "data.pkl": start + b")" + b"2\x86" * 100 + b"0" + rest}),
        "billion laughs of lists": packed(
            {**records, "data.pkl": start + b"]" + b"q\0]q\1h\0ah\0a" * 100 + b"0" + rest}
        ),
        "a million tuples deep": packed({**records, "data.pkl": start + b")" + b"\x85" * 1_000_000 + b"0" + rest}),
        "a million lists deep": packed(
            {**records, "data.pkl": start + b"](" * 1_000_000 + b"e" * 1_000_000 + b"0" + rest}
        ),
    }
    return found


def without_checksums(data: bytes) -> bytes:
    """The zip file with 0 for every CRC-32, which one reader takes for "none" and another for a mistake."""
    changed = bytearray(data)
    for signature, field in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        at = changed.find(signature)
        while at >= 0:
            changed[at + field : at + field + 4] = bytes(4)
            at = changed.find(signature, at + 4)
    return bytes(changed)


def flagged(data: bytes, flags: int) -> bytes:
    """The zip file with these flags on every record, in its own header only."""
    changed = bytearray(data)
    at = changed.find(b"PK\3\4")
    while at >= 0:
        struct.pack_into("<H", changed, at + 6, flags)
        at = changed.find(b"PK\3\4", at + 4)
    return bytes(changed)


HARMLESS = {"pickle in another case", "0 sound"}
"""Files that are read: what is hostile in them is no part of a torch.save file, or becomes a placeholder."""
REFUSED = {
    *("nullifAI", "nullifAI raw", "payload behind the end", "protocol 0 payload behind the end", "two pickles"),
    *("pickle in another folder", "legacy pickle in front", "zip behind a zip", "trailing data", "seven-zip"),
    *("encrypted by its flags", "strong encryption", "python code", "constants", "other name inside"),
    *("persistent text", "persistent path", "extension", "protocol 0", "text opcodes"),
}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    root = tmp_path_factory.mktemp("attacks")
    canary = root / "canary"
    for name, data in files(canary).items():
        (root / "files" / name).mkdir(parents=True)
        (root / "files" / name / "trainer.pt").write_bytes(data)
    command = [sys.executable, "-c", WATCHED, root / "files"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), canary


def test_nothing_runs_nothing_is_started_and_nothing_is_imported(attacked: tuple[dict[str, object], Path]) -> None:
    found, canary = attacked
    assert not canary.exists()
    assert found["imported"] == []
    allowed = {"_thread.start_new_thread", "mmap.__new__", "gc.get_objects"}  # how a file is read
    assert [event for event in found["events"] if event[0] not in allowed] == []


def test_every_attack_is_refused_or_read_as_what_it_says(attacked: tuple[dict[str, object], Path]) -> None:
    outcomes = attacked[0]["outcomes"]
    refused = {name for name, outcome in outcomes.items() if not outcome.startswith("read")}
    assert refused >= REFUSED, REFUSED - refused
    assert {outcome for name, outcome in outcomes.items() if name not in refused} == {"read 1"}, "the sound part, whole"
    assert outcomes.keys() - refused >= HARMLESS
    for name in refused:
        assert outcomes[name].startswith(("MalformedFile", "UnsafePickle", "UnsupportedLora")), outcomes[name]
    assert len(outcomes) > 60


def test_the_watch_would_notice(tmp_path: Path) -> None:
    """The same hook over the stock unpickler, which runs what it is told."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "trainer.pt").write_bytes(b"\x80\x02" + called("os", "system", "true") + b"N.")
    stock = "import pickle\ndef read_checkpoint(path):\n    pickle.loads(Path(path).read_bytes())\n"
    program = WATCHED.replace("before = ", f"{stock}before = ", 1).replace("len(checkpoint.lora.pairs)", "checkpoint")
    command = [sys.executable, "-c", program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [event[0] for event in json.loads(done.stdout)["events"]] == ["os.system"]
