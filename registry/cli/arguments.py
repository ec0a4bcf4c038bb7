"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli.environment import HOME_VARIABLE

MAX_LIMIT = 100_000

Home = Annotated[
    str | None,
    typer.Option(
        "--home", metavar="DIR", help=f"The registry's directory. [default: ${HOME_VARIABLE}, else user data]"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Checkpoint = Annotated[
    str, typer.Argument(metavar="CKPT", help="A checkpoint's or PEFT adapter's directory, or the tensor file in it.")
]
Checkpoints = Annotated[
    list[str],
    typer.Argument(metavar="CKPT...", help="Directories of checkpoints or PEFT adapters, or the tensor files in them."),
]
Ref = Annotated[
    str, typer.Argument(metavar="REF", help="A digest or its first 4 or more digits, an alias, RUN@ITER or RUN@latest.")
]
Alpha = Annotated[
    float | None,
    typer.Option("--alpha", metavar="X", help="lora_alpha, where neither the checkpoint nor the run's config has it."),
]
ForEngine = Annotated[
    str | None,
    typer.Option("--for", metavar="ENGINE", help="vllm, sglang or peft: refuse what it would not load as what it is."),
]
BaseName = Annotated[
    str | None, typer.Option("--base-name", metavar="NAME", help="What the copy's config calls the base.")
]
MaxRank = Annotated[
    int | None, typer.Option("--max-rank", min=1, metavar="N", help="The highest rank the engine was started to allow.")
]
Run = Annotated[str | None, typer.Option("--run", metavar="NAME", help="The run, where its config does not name it.")]
Base = Annotated[
    str | None,
    typer.Option("--base", metavar="DIR|NAME", help="The base: its name to record, or its weights to compare with."),
]
Parent = Annotated[
    str | None,
    typer.Option("--parent", metavar="REF", help="The adapter its run started from, where the config names none."),
]
Weights = Annotated[str, typer.Option("--base", metavar="DIR", help="The base model's weights, of safetensors.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, metavar="N", help="How many at most.")]
AllowNonfinite = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Accept infinite or NaN elements; they are counted.")
]
