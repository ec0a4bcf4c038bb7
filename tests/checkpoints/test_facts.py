"""r, alpha and their like are read from checkpoint, config and option; they must agree and are never guessed."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.checkpoints import read_checkpoint
from registry.core.digest import Digest
from registry.core.errors import MalformedFile, MissingAlpha, Refused, UnsupportedLora
from registry.core.model import Checkpoint, LoraSettings, Provenance, number
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.values import digest_of, read

PARENT = digest_of("parent")
UNUSABLE = [
    0,
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    "8",
    "",
    [8],
    {},
    10**400,
    1e30,
    2**63,
]


def saved(**lora: Any) -> dict[str, Any]:
    return contents(lora_state(), **lora)


def settings_of(checkpoint: Checkpoint) -> tuple[LoraSettings, str]:
    return checkpoint.lora.settings, checkpoint.alpha_source


@pytest.mark.parametrize(
    ("lora", "config", "option", "alpha", "source"),
    [
        ({"alpha": 16}, {}, None, 16, "checkpoint"),
        ({"alpha": None, "lora_alpha": 16}, {}, None, 16, "checkpoint"),
        ({"alpha": 16.0}, {"alpha": 16}, 16.0, 16, "checkpoint"),
        ({"alpha": None}, {"alpha": 16}, None, 16, "config"),
        ({"alpha": None}, {"lora_alpha": 16}, 16.0, 16, "config"),
        ({"alpha": None}, {}, 16.0, 16, "option"),
        ({"alpha": 8.5}, {}, None, 8.5, "checkpoint"),
        ({"alpha": -8}, {}, None, -8, "checkpoint"),
    ],
)
def test_alpha_comes_from_the_first_source_that_states_it(
    tmp_path: Path, lora: dict[str, Any], config: dict[str, Any], option: float | None, alpha: float, source: str
) -> None:
    checkpoint = read(tmp_path / "run", saved(**lora), config={"lora": config}, alpha=option)
    assert settings_of(checkpoint) == (LoraSettings(4, alpha), source)
    assert type(checkpoint.lora.settings.alpha) is type(alpha)


@pytest.mark.parametrize(
    ("lora", "config", "option", "key"),
    [
        ({"alpha": 8}, {"alpha": 16}, None, "config config.json: lora.alpha"),
        ({"alpha": 8}, {"lora_alpha": 16}, None, "config config.json: lora.lora_alpha"),
        ({"alpha": 8, "lora_alpha": 16}, {}, None, "checkpoint trainer.pt: lora.lora_alpha"),
        ({"alpha": 8}, {}, 16.0, "--alpha"),
        ({"alpha": None}, {"alpha": 8}, 16.0, "--alpha"),
    ],
)
def test_sources_that_disagree_about_alpha_are_refused_with_both_values(
    tmp_path: Path, lora: dict[str, Any], config: dict[str, Any], option: float | None, key: str
) -> None:
    with pytest.raises(UnsupportedLora, match=r"8.*16|16.*8") as caught:
        read(tmp_path / "run", saved(**lora), config={"lora": config}, alpha=option)
    assert caught.value.key == key


@pytest.mark.parametrize("value", UNUSABLE, ids=lambda value: repr(value)[:8])
@pytest.mark.parametrize("where", ["checkpoint", "config", "option"])
def test_an_alpha_that_is_no_finite_number_other_than_zero_is_refused(tmp_path: Path, value: Any, where: str) -> None:
    directory = write_checkpoint(
        tmp_path / "run", saved(alpha=value if where == "checkpoint" else None), config={"lora": {}}
    )
    if where == "config":
        (tmp_path / "run/config.json").write_text(json.dumps({"lora": {"alpha": value}}))
    with pytest.raises((UnsupportedLora, MalformedFile), match=r"alpha|is not JSON"):
        read_checkpoint(str(directory), alpha=value if where == "option" else 8)


@pytest.mark.parametrize("config", [{}, {"lora": {}}, {"lora": {"alpha": None}}, {"lora": 8}, {"alpha": 8}])
def test_without_any_alpha_the_message_says_where_it_looked(tmp_path: Path, config: dict[str, Any]) -> None:
    """lerobot#3551"""
    with pytest.raises(MissingAlpha) as caught:
        read(tmp_path / "run", saved(alpha=None), config=config)
    assert caught.value.path == str(tmp_path / "run/ckpt/iter-3/trainer.pt")
    for part in ("checkpoint trainer.pt: lora", "config config.json: lora", "alpha, lora_alpha", "--alpha"):
        assert part in str(caught.value)


def test_the_rank_is_that_of_the_tensors_and_every_statement_must_say_so(tmp_path: Path) -> None:
    assert read(tmp_path / "silent", saved(r=None), config={}).lora.settings.r == 4
    assert read(tmp_path / "other names", saved(r=None, rank=4), config={"lora": {"lora_r": 4}}).lora.settings.r == 4
    with pytest.raises(UnsupportedLora, match="rank is not the stated one; found 4; expected 8"):
        read(tmp_path / "wrong", saved(r=8), config={})
    with pytest.raises(UnsupportedLora, match=r"config\.json: lora\.r: sources disagree; found 8; expected 4"):
        read(tmp_path / "disagree", saved(r=4), config={"lora": {"r": 8}})


@pytest.mark.parametrize("value", [0, -4, 4.5, True, "4", [4]])
def test_a_rank_that_is_no_positive_whole_number_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UnsupportedLora, match=r"lora\.r: not a usable value"):
        read(tmp_path / "run", saved(r=value), config={})


def mixed_ranks() -> dict[str, torch.Tensor]:
    return lora_state(modules=("a.q_proj", "b.q_proj")) | lora_state(r=2, modules=("a.up_proj",))


@pytest.mark.parametrize("pattern", [{"up_proj": 2}, {"a.up_proj": 2}, {r".*up.*": 2}, {"up_proj": 2, "k_proj": 9}])
def test_rank_patterns_are_checked_against_every_shape(tmp_path: Path, pattern: dict[str, int]) -> None:
    checkpoint = read(tmp_path / "run", contents(mixed_ranks(), rank_pattern=pattern), config={})
    assert (checkpoint.lora.settings.r, dict(checkpoint.lora.settings.rank_pattern)) == (4, pattern)


@pytest.mark.parametrize(
    ("lora", "cause"),
    [
        ({"r": None}, r"ranks differ and r is stated nowhere; found \[2, 4\]"),
        ({"r": 4}, r"a\.up_proj: the tensors' rank is not the stated one; found 2; expected 4"),
        ({"r": 4, "rank_pattern": {"up_proj": 3}}, r"a\.up_proj: .*found 2; expected 3"),
        ({"r": 4, "rank_pattern": {"a": 2}}, r"a\.up_proj: .*found 2; expected 4"),
        ({"r": 4, "rank_pattern": {"up_proj": 2, r"a\..*": 2}}, r"a\.q_proj: .*found 4; expected 2"),
        ({"r": 4, "rank_pattern": {"up_proj": 2, r"a\..*": 4}}, r"several keys of rank_pattern match one module"),
        ({"r": 4, "rank_pattern": {"up_proj": 0}}, "not a usable value"),
        ({"r": 4, "rank_pattern": [["up_proj", 2]]}, "not a usable value"),
    ],
)
def test_ranks_that_the_patterns_do_not_explain_are_refused(tmp_path: Path, lora: dict[str, Any], cause: str) -> None:
    """peft#2194"""
    with pytest.raises(UnsupportedLora, match=cause):
        read(tmp_path / "run", contents(mixed_ranks(), **lora), config={})


def test_general_and_specific_patterns_are_each_resolved_on_their_own(tmp_path: Path) -> None:
    """peft#2194"""
    patterns = {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"a.up_proj": 1, "b.q_proj": 2.5}}
    settings = read(tmp_path / "run", contents(mixed_ranks(), **patterns), config={}).lora.settings
    assert settings.rank_pattern == (("up_proj", 2),)
    assert settings.alpha_pattern == (("a.up_proj", 1), ("b.q_proj", 2.5))


@pytest.mark.parametrize("key", ["^q_proj", "k_proj", "_proj"])
def test_a_pattern_that_matches_nothing_is_warned_of(tmp_path: Path, key: str) -> None:
    """peft#3582"""
    checkpoint = read(tmp_path / "run", saved(alpha_pattern={key: 4, "q_proj": 2}, rank_pattern={key: 4}))
    assert checkpoint.warnings == (
        f"rank_pattern {key!r} matches no module",
        f"alpha_pattern {key!r} matches no module",
    )


def test_patterns_whose_order_would_count_are_refused(tmp_path: Path) -> None:
    pattern = {"q_proj": 4, r"layers\.0\..*": 2}
    with pytest.raises(UnsupportedLora, match="several keys of alpha_pattern match one module"):
        read(tmp_path / "run", saved(alpha_pattern=pattern))
    agreeing = dict.fromkeys(pattern, 4)
    assert dict(read(tmp_path / "same", saved(alpha_pattern=agreeing)).lora.settings.alpha_pattern) == agreeing


@pytest.mark.parametrize(
    "pattern",
    [
        {"(": 4},
        {"(?i)q_proj": 4},
        {r"(\w+\.?)*X": 4},
        {"(a|a)+X": 4},
        {".*.*.*X": 4},
        {r"\w{1,}\w{2,}\w+X": 4},
        {"\ud800": 4},
        {"q\n": 4},
        {5: 4},
        {"q_proj": 0},
        {"q_proj": "4"},
        ["q_proj"],
        "q_proj",
        4,
    ],
    ids=repr,
)
def test_a_pattern_that_peft_could_not_use_or_not_finish_is_refused(tmp_path: Path, pattern: Any) -> None:
    with pytest.raises(UnsupportedLora, match=r"lora\.alpha_pattern: not a usable value"):
        read(tmp_path / "run", saved(alpha_pattern=pattern))


@pytest.mark.parametrize("where", ["checkpoint", "config"])
@pytest.mark.parametrize(
    ("key", "setting"),
    [("use_rslora", "use_rslora"), ("rslora", "use_rslora"), ("fan_in_fan_out", "fan_in_fan_out")],
)
def test_rslora_and_fan_in_fan_out_are_read_and_must_be_agreed_on(
    tmp_path: Path, where: str, key: str, setting: str
) -> None:
    """vllm#10798, sglang#40835; lorax#106"""
    lora = {"checkpoint": {}, "config": {}, where: {key: True}}
    checkpoint = read(tmp_path / "run", saved(**lora["checkpoint"]), config={"lora": lora["config"]})
    assert getattr(checkpoint.lora.settings, setting) is True
    with pytest.raises(UnsupportedLora, match="sources disagree"):
        read(tmp_path / "other", saved(**{setting: True}), config={"lora": {key: False}})
    with pytest.raises(UnsupportedLora, match="not a usable value; found 'yes'"):
        read(tmp_path / "text", saved(**{setting: "yes"}), config={})


def test_a_setting_inside_another_kind_of_mapping_is_still_read(tmp_path: Path) -> None:
    """A defaultdict is a global of which only the items are kept; its alpha must not lose to the config's."""
    whole = {**saved(), "lora": defaultdict(int, saved(alpha=16)["lora"])}
    with pytest.raises(UnsupportedLora, match="sources disagree; found 8; expected 16"):
        read(tmp_path / "run", whole, config={"lora": {"alpha": 8}})


@pytest.mark.parametrize("where", ["checkpoint", "config"])
@pytest.mark.parametrize(
    "setting", [{"use_dora": True}, {"bias": "all"}, {"bias": "lora_only"}, {"modules_to_save": ["lm_head"]}], ids=repr
)
def test_settings_that_need_more_than_the_factors_are_refused(
    tmp_path: Path, setting: dict[str, Any], where: str
) -> None:
    """Megatron-Bridge#6031: use_dora without magnitudes"""
    lora = {"checkpoint": {}, "config": {}, where: setting}
    (key,) = setting
    with pytest.raises(UnsupportedLora, match=rf"lora\.{key}: .*do not hold what this setting adds"):
        read(tmp_path / "run", saved(**lora["checkpoint"]), config={"lora": lora["config"]})


def test_the_same_settings_switched_off_are_accepted(tmp_path: Path) -> None:
    off = {"use_dora": False, "bias": "none", "modules_to_save": []}
    assert settings_of(read(tmp_path / "run", saved(**off), config={"lora": off})) == (LoraSettings(4, 8), "checkpoint")


def test_provenance_is_what_checkpoint_and_config_say(tmp_path: Path) -> None:
    config = {
        "run_id": "r1",
        "model": {"base": "org/base", "revision": "abc", "adapter": str(PARENT)},
        "sync": {"stochastic_rounding": False},
        "resume": {"checkpoint": PARENT.hex},
    }
    checkpoint = read(tmp_path / "run", contents(lora_state(), iteration=7), iteration=7, config=config)
    digest = Digest(hashlib.sha256((tmp_path / "run/config.json").read_bytes()).hexdigest())
    assert checkpoint.provenance == Provenance(
        "r1", 7, "org/base", "abc", PARENT, PARENT, False, digest, warm_start_source="config"
    )
    assert checkpoint.warnings == ()


@pytest.mark.parametrize(
    "config", [{}, {"model": None, "sync": [], "resume": "x", "run_id": 5}, {"model": {"base": "", "adapter": "x"}}]
)
def test_what_the_config_does_not_say_is_not_invented(tmp_path: Path, config: dict[str, Any]) -> None:
    """transformers#25215: the base is null"""
    provenance = read(tmp_path / "run", config=config).provenance
    assert provenance == Provenance(iteration=3, config=provenance.config)


def test_a_base_that_is_gone_is_recorded_as_it_was_named(tmp_path: Path) -> None:
    """transformers#25215: the base is a local path"""
    config = {"model": {"base": "/gone/base"}}
    assert read(tmp_path / "run", config=config).provenance.base == "/gone/base"


def test_the_run_and_base_options_fill_gaps_and_never_contradict_the_run(tmp_path: Path) -> None:
    named = read(tmp_path / "run", config={}, run="r1", base="org/base")
    assert (named.provenance.run, named.provenance.base, named.warnings) == ("r1", "org/base", ())
    unnamed = read(tmp_path / "unnamed", config={})
    assert unnamed.warnings == ("the run is not known: give it with --run",)
    config = {"run_id": "r2", "model": {"base": "org/other", "revision": "abc"}}
    overridden = read(tmp_path / "base", config=config, run="r2", base="org/base").provenance
    assert (overridden.base, overridden.base_revision) == ("org/base", None)
    with pytest.raises(Refused, match=r"run_id: .*found r2; expected r1"):
        read(tmp_path / "other", config=config, run="r1")


@pytest.mark.parametrize("option", ["run", "base"])
@pytest.mark.parametrize("name", ["\udcff", "a\nb", "\x1b[2J"])
def test_a_name_that_cannot_be_printed_is_refused(tmp_path: Path, option: str, name: str) -> None:
    with pytest.raises(Refused, match="not a printable name") as caught:
        read(tmp_path / "run", config={}, **{option: name})  # type: ignore[arg-type]
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("iteration", "directory", "expected", "warned"),
    [
        (3, 3, 3, False),
        (3.0, 3, 3, False),
        (None, 5, 5, False),
        (4, 5, 4, True),
        (0, 0, 0, False),
        (None, 10**25, None, False),
    ],
)
def test_the_checkpoints_iteration_counts_and_another_directory_is_warned_of(
    tmp_path: Path, iteration: Any, directory: int, expected: int | None, *, warned: bool
) -> None:
    checkpoint = read(tmp_path / "run", contents(lora_state(), iteration=iteration), iteration=directory)
    assert checkpoint.provenance.iteration == expected
    assert checkpoint.warnings == ((f"the directory says iteration {directory}, the checkpoint {expected}",) * warned)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[1]", "not a JSON object; found list"),
        ("null", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"lora": {"alpha": 8, "alpha": 16}}', "the key 'alpha' appears twice"),
        ('{"lora": {"alpha": NaN}}', "NaN is not JSON"),
        ('{"run_id": "\\ud800"}', "not UTF-8"),
        ("", "not valid JSON"),
    ],
)
def test_a_malformed_config_is_refused_with_its_name(tmp_path: Path, text: str, cause: str) -> None:
    directory = write_checkpoint(tmp_path / "run")
    (tmp_path / "run/config.json").write_text(text)
    with pytest.raises(MalformedFile, match=rf"run/config\.json: .*{cause}"):
        read_checkpoint(str(directory))


def test_only_the_config_of_the_checkpoints_own_run_is_read(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "run")
    (tmp_path / "run/elsewhere").mkdir()
    stray = directory.rename(tmp_path / "run/elsewhere/iter-3")
    assert read_checkpoint(str(stray)).provenance == Provenance(iteration=3)
    link = tmp_path / "latest"
    link.symlink_to(stray.rename(directory))
    assert read_checkpoint(str(link)).provenance.run == "run"


@pytest.mark.parametrize("value", [*UNUSABLE[3:], None, 1j, b"8"], ids=lambda value: repr(value)[:8])
def test_number_takes_nothing_but_numbers_that_json_and_the_index_keep(value: Any) -> None:
    assert number(value) is None


@pytest.mark.parametrize(("value", "same"), [(32.0, 32), (-1, -1), (0.5, 0.5), (0, 0), (2**63 - 1, 2**63 - 1)])
def test_number_makes_equal_numbers_one(value: float, same: float) -> None:
    assert (number(value), type(number(value))) == (same, type(same))
