"""What is fuzzed: for each reader the sound inputs to start from, and what is done with a damaged one.

Everything is tried as users reach it: a file with the damaged bytes among sound ones, and the function that reads it.
A target for a new reader is one more entry of `make_targets`.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors

from registry import Registry, RegistryError
from registry.adapter.stored import read_adapter
from registry.checkpoints import read_checkpoint
from registry.checkpoints.archive import read_archive
from registry.checkpoints.lora_keys import find_lora
from registry.checkpoints.manifests import find_entry
from registry.checkpoints.pickled import load
from registry.checkpoints.source import Source
from registry.core import records, refs
from registry.core.digest import Digest
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from registry.core.patterns import scale_of
from registry.disk.safetensors import read_header, read_into
from registry.index.writing import Rows
from registry.served.evidence import open_engines
from registry.served.pairing import pair_up
from registry.served.plan import plan
from registry.served.weights import INDEX, open_weights
from tests.fuzz import asked
from tests.support import scoring
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.sharding import make_shards
from tests.support.trees import rewrite
from tests.support.values import digest_of

Run = Callable[[bytes, Path], None]
"""Does what readers do with the damaged bytes; the directory is empty and may be written to."""

_KINDS = (records.EXPORT, records.COMPARISON, records.ALIAS, records.SCORE, records.REMOVAL)
_VERL, _HF, _SHARD, _META = "global_step_3", "checkpoint-3", "model_world_size_1_rank_0.pt", "lora_train_meta.json"
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """One reader: what kind of input it takes (see `mutate.KINDS`), sound ones, and how it is read."""

    name: str
    kind: str
    seeds: tuple[bytes, ...]
    run: Run

    @property
    def corpus(self) -> dict[str, bytes]:
        """Inputs that are kept: what once went wrong, or reaches what others do not."""
        return {path.name: path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))}


def make_targets(scratch: Path) -> dict[str, Target]:
    """All targets, with seeds made by torch, safetensors and this project itself. `scratch` must outlive them."""
    run = scratch / "run"
    directory = write_checkpoint(run)
    home = scratch / "home"
    registry = Registry(home)
    digest = registry.add(directory).digest
    registry.set_alias("best", digest.hex)
    stored = home / "adapters" / digest.hex[:2] / digest.hex
    checkpoint, config = (directory / "trainer.pt").read_bytes(), (run / "config.json").read_bytes()
    saved = [_saved(value) for value in _checkpoints()]
    pickles = [_records(each)["data.pkl"] for each in (checkpoint, *saved)]
    manifest = (directory / "manifest.json").read_bytes()
    weights, settings = (stored / WEIGHTS).read_bytes(), (stored / CONFIG).read_bytes()
    base = to_safetensors(_base())
    actor = make_shards(scratch / "shards", 1)[3, "Shard(0)"]
    shard, meta = (actor / _SHARD).read_bytes(), (actor / _META).read_bytes()
    made = _made_records(home, digest)
    sums = f"{hashlib.sha256(checkpoint).hexdigest()}  trainer.pt\n".encode()
    listed = json.loads(manifest)["files"]
    spelled = [json.dumps(each).encode() for each in ([{"path": "trainer.pt", **listed["trainer.pt"]}], listed)]
    targets = [
        Target("checkpoint", "zip", (checkpoint, *saved), _run_file("ckpt/iter-3/trainer.pt", {"config.json": config})),
        Target("archive", "zip", (checkpoint, *saved), _read_archive),
        Target("pickle", "pickle", (*pickles, *_more_pickles()), _read_pickle),
        Target("manifest", "json", (manifest, *spelled), _manifest("manifest.json")),
        Target("sums", "text", (sums, sums * 3), _manifest("SHA256SUMS")),
        Target(
            "run-config",
            "json",
            (config, *_configs()),
            _run_file("config.json", {"ckpt/iter-3/trainer.pt": checkpoint}),
        ),
        Target("safetensors", "safetensors", (weights, base), _read_tensors),
        Target("adapter", "safetensors", (weights, to_safetensors(_odd_adapter())), _adapter(WEIGHTS, settings)),
        Target("adapter-config", "json", (settings, *_settings(settings)), _adapter(CONFIG, weights)),
        Target("listing", "json", (_listing(),), _read_listing),
        Target("index-of-shards", "json", (_index(),), _read_index(base)),
        Target(
            "base-config",
            "json",
            (b'{"model_type": "gpt2", "tie_word_embeddings": true, "text_config": {"vocab_size": 8}}',),
            _plan(weights, settings, base),
        ),
        Target("shard", "zip", (shard,), _run_file(f"{_VERL}/actor/{_SHARD}", {f"{_VERL}/actor/{_META}": meta}, _VERL)),
        Target(
            "verl-meta",
            "json",
            (meta, b'{"r": 2, "lora_alpha": 4}'),
            _run_file(f"{_VERL}/lora_train_meta.json", {f"{_VERL}/actor/{_SHARD}": shard}, _VERL),
        ),
        Target(
            "trainer-state",
            "json",
            (b'{"global_step": 3, "log_history": [{"loss": 0.5}]}',),
            _run_file(f"{_HF}/trainer_state.json", {f"{_HF}/{WEIGHTS}": weights, f"{_HF}/{CONFIG}": settings}, _HF),
        ),
        Target("record", "json", tuple(made), _read_record),
        Target(
            "stored-weights", "safetensors", (weights,), _stored(home, f"{stored.relative_to(home)}/{WEIGHTS}", digest)
        ),
        Target("stored-config", "json", (settings,), _stored(home, f"{stored.relative_to(home)}/{CONFIG}", digest)),
        Target(
            "stored-manifest",
            "json",
            ((stored / MANIFEST).read_bytes(),),
            _stored(home, f"{stored.relative_to(home)}/{MANIFEST}", digest),
        ),
        Target("stored-record", "json", tuple(made), _stored_record(home, digest)),
        Target(
            "reference",
            "text",
            (b"run@3", b"best", digest.hex.encode(), b"sha256:abcd", b"a@b@latest"),
            _read_reference,
        ),
        Target("score-run", "json", asked.SCORE_RUNS, asked.score_run(scoring.RESULT)),
        Target("score-config", "json", asked.SCORE_CONFIGS, asked.score_run(scoring.CONFIG)),
        Target("search", "text", asked.ASKED, asked.asked(home)),
        Target("lineage", "json", asked.LINEAGES, asked.draw_lineage),
    ]
    return {target.name: target for target in targets}


def _checkpoints() -> list[Any]:
    state = lora_state(r=2)
    modules = {
        f"base_model.model._orig_mod.{name}": torch.nn.Parameter(tensor.half()) for name, tensor in state.items()
    }
    views = {name: torch.zeros(30, 40)[: tensor.shape[0], : tensor.shape[1]] for name, tensor in state.items()}
    return [
        contents(modules, r=2, rank_pattern={"q_proj": 2}, alpha_pattern={r"layers\.\d+\.mlp": 4}),
        contents(views, r=2) | {"numpy": torch.arange(3).numpy(), "set": {1, 2}, "size": torch.Size([1])},
        {"model": torch.nn.Linear(2, 2).state_dict(), "deep": [[[{"x": (1, {"y": 2.5})}]]]},
    ]


def _saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _records(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def _more_pickles() -> list[bytes]:
    value = {"a": [1, (2.5, b"x" * 300), {"b", "c"}, frozenset([1])], ("k", 1): {"n": None, "big": 2**200}}
    return [pickle.dumps(value, protocol) for protocol in (2, 4, 5)]


def _configs() -> list[bytes]:
    full = {
        "run_id": "r",
        "model": {"base": "b", "revision": "v", "adapter": "sha256:" + "0" * 64},
        "lora": {"r": 4, "alpha": 8, "use_rslora": True, "rank_pattern": {"q_proj": 4}, "bias": "none"},
        "sync": {"stochastic_rounding": True},
        "resume": {"checkpoint": "1" * 64},
    }
    return [json.dumps(full).encode()]


def _settings(settings: bytes) -> list[bytes]:
    more = {"target_modules": r".*\.(q|down)_proj", "exclude_modules": ["k_proj"], "alpha_pattern": {"q_proj": 3}}
    other = {"target_parameters": ["a.b"], "modules_to_save": ["lm_head"], "use_rslora": True, "bias": "all"}
    return [json.dumps(json.loads(settings) | each).encode() for each in (more, other)]


def _base() -> dict[str, torch.Tensor]:
    names = {name.rpartition(".lora_")[0] for name in lora_state()}
    return {f"{name}.weight": torch.zeros(24, 16) for name in names} | {"model.embed_tokens.weight": torch.zeros(8, 16)}


def _odd_adapter() -> dict[str, torch.Tensor]:
    key = "base_model.model.model.layers.0.self_attn.q_proj"
    return {
        f"{key}.lora_A.default.weight": torch.zeros(4, 16),
        f"{key}.lora_B.default.weight": torch.zeros(24, 4),
        f"{key}.lora_B.bias": torch.zeros(24),
        "base_model.model.lm_head.weight": torch.zeros(8, 16),
        "base_model.model.x.base_layer.bias": torch.zeros(3),
    }


def _listing() -> bytes:
    tensors = {name: {"sha256": digest_of(name).hex, "shape": list(value.shape)} for name, value in _base().items()}
    stated = {"engine": "e", "iteration": 3, "rounding": "nearest", "device": "cpu", "threads": 1, "dtype": "float32"}
    return json.dumps(stated | {"tensors": tensors}).encode()


def _index() -> bytes:
    return json.dumps(
        {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(_base(), "model.safetensors")}
    ).encode()


def _made_records(home: Path, digest: Digest) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(home.glob("records/*/*/*.json"))]
    engine = {"engine": "e", "verdict": "identical", "served_digest": digest.hex, "survival": None, "stated": {}}
    compared = {
        "recipe": "fp32",
        "engines": [engine, {**engine, "survival": {"projected": 1.0, "rounded_away": 0.1}}],
        "conditions": {"torch": "2", "device": "cpu", "threads": 1},
        "base_digest": digest.hex,
        "compared_at": "2030",
    }
    scored = {
        "status": "stopped",
        "stop": {"reason": "r", "detail": {}},
        "scores": {"pass@1": 0.5, "n": 3},
        "score_run": {"name": "s", "path": "p", "result": {"sha256": digest.hex}, "config": {"sha256": digest.hex}},
        "scored_at": "2030",
        "scored_by": "me",
    }
    removed = {"removed_at": "2030", "removed_by": "me", "reason": "r"}
    stated = {records.COMPARISON: compared, records.SCORE: scored, records.REMOVAL: removed}
    return [*found, *(records.make(kind, digest, predicate).data for kind, predicate in stated.items())]


def _put(directory: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


def _run_file(name: str, others: dict[str, bytes], checkpoint: str = "ckpt/iter-3") -> Run:
    def run(data: bytes, directory: Path) -> None:
        _put(directory, {name: data, **others})
        read_checkpoint(str(directory / checkpoint))

    return run


def _read_archive(data: bytes, directory: Path) -> None:
    _put(directory, {"trainer.pt": data})
    with Source(directory / "trainer.pt") as source:
        archive = read_archive(source)
        for name in archive.entries:
            archive.locate(source, name)


def _read_pickle(data: bytes, _directory: Path) -> None:
    find_lora(load(data, "file"), "file")


def _manifest(name: str) -> Run:
    def run(data: bytes, directory: Path) -> None:
        _put(directory, {name: data})
        find_entry(str(directory), "trainer.pt")

    return run


def _read_tensors(data: bytes, directory: Path) -> None:
    _put(directory, {"file": data})
    with (directory / "file").open("rb", buffering=0) as file:
        for entry in read_header(file).tensors.values():
            read_into(file, entry, memoryview(bytearray(entry.nbytes)))


def _adapter(name: str, other: bytes) -> Run:
    def run(data: bytes, directory: Path) -> None:
        weights, config = (data, other) if name == WEIGHTS else (other, data)
        _put(directory, {WEIGHTS: weights})
        with (directory / WEIGHTS).open("rb", buffering=0) as file:
            read = read_adapter(file, config)
        for pair in read.lora.pairs:
            scale_of(pair.module, read.lora.settings, pair.rank)
            pair.a.contiguous()

    return run


def _read_listing(data: bytes, directory: Path) -> None:
    _put(directory, {"served-weights.json": data})
    with open_engines([str(directory)]) as engines:
        for engine in engines:
            pair_up({name: tuple(value.shape) for name, value in _base().items()}, engine.shapes, engine.name)


def _read_index(base: bytes) -> Run:
    def run(data: bytes, directory: Path) -> None:
        _put(directory, {INDEX: data, "model.safetensors": base})
        with open_weights(str(directory)):
            pass

    return run


def _plan(weights: bytes, settings: bytes, base: bytes) -> Run:
    def run(data: bytes, directory: Path) -> None:
        _put(directory, {"config.json": data, "model.safetensors": base, f"adapter/{WEIGHTS}": weights})
        with (directory / "adapter" / WEIGHTS).open("rb", buffering=0) as file, open_weights(str(directory)) as opened:
            plan(read_adapter(file, settings), opened)

    return run


def _read_record(data: bytes, _directory: Path) -> None:
    name = f"{_kind_of(data)}-{hashlib.sha256(data).hexdigest()}.json"
    Rows().take(records.parse(data, name))


def _kind_of(data: bytes) -> str:
    return next((each for each in _KINDS if f":{each}:".encode() in data), records.EXPORT)


def _stored(home: Path, name: str, digest: Digest) -> Run:
    """The registry with one stored file exchanged: everything that looks at it is asked."""

    def run(data: bytes, directory: Path) -> None:
        copy = directory / "home"
        shutil.copytree(home, copy)
        rewrite(copy / name, data)
        _ask(copy, digest)

    return run


def _stored_record(home: Path, digest: Digest) -> Run:
    """The registry with one more record, under the name that its bytes have."""

    def run(data: bytes, directory: Path) -> None:
        copy = directory / "home"
        shutil.copytree(home, copy)
        name = f"{_kind_of(data)}-{hashlib.sha256(data).hexdigest()}.json"
        _put(copy, {f"records/{digest.hex[:2]}/{digest.hex}/{name}": data, f"pending/{name}": data})
        _ask(copy, digest)

    return run


def _ask(home: Path, digest: Digest) -> None:
    registry = Registry(home, note=lambda _: None)
    for question in (
        lambda: registry.show(digest.hex),
        lambda: registry.path("best"),
        lambda: registry.newest(10),
        registry.reindex,
        lambda: registry.show("run@latest"),
        lambda: registry.get(digest.hex, home / "out"),
        lambda: registry.alias_history("best"),
    ):
        with suppress(RegistryError):
            question()


def _read_reference(data: bytes, _directory: Path) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for read in (refs.parse, refs.alias_name, Digest.parse):
        with suppress(RegistryError):
            read(text)
