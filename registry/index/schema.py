"""The tables as they are today. `migrations/` holds how they came to be; a test holds the two against each other."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

HEAD = "0004"
"""The newest revision under `migrations/`; compared without loading Alembic."""

_HEX = String(64)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

adapters = Table(
    "adapters",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", _HEX, nullable=False, unique=True),
    Column("tensor_digest", _HEX, nullable=False, index=True),
    Column("bytes", Integer, nullable=False),
    Column("modules", Integer, nullable=False),
    Column("r", Integer, nullable=False),
    Column("lora_alpha", Float, nullable=False),
    Column("use_rslora", Boolean, nullable=False),
    Column("first_exported_at", String(32), nullable=False),
    Column("verdict", String(16)),  # the gravest of what is known of its served weights
    Column("removed_at", String(32)),  # null for what is there
    CheckConstraint("lora_alpha <> 0", name="lora_alpha_not_zero"),
    Index(None, "removed_at", "first_exported_at", "digest"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", _HEX, nullable=False, unique=True),
    Column("bytes", Integer, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
)

# A run whose config changed when it was resumed is not one thing: what its exports state together is one stretch of it.
stretches = Table(
    "stretches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", String, nullable=False),  # empty for none, as the others
    Column("base_name", String, nullable=False),
    Column("base_revision", String, nullable=False),
    Column("warm_start", String(64), nullable=False),
    Column("resumed_from", String(64), nullable=False),
    UniqueConstraint("run", "base_name", "base_revision", "warm_start", "resumed_from"),
    Index(None, "warm_start"),
    Index(None, "resumed_from"),
)

exports = Table(
    "exports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("record", _HEX, nullable=False, unique=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False, index=True),
    Column("checkpoint_id", ForeignKey("checkpoints.id"), nullable=False, index=True),
    Column("run_id", ForeignKey("runs.id")),
    Column("iteration", Integer),
    Column("base_name", String),
    Column("base_revision", String),
    Column("path", String, nullable=False),
    Column("reader", String, nullable=False),
    Column("exported_at", String(32), nullable=False),
    Column("warm_start", _HEX, index=True),  # what the run says it started from: digests, known here or not
    Column("resumed_from", _HEX, index=True),
    Column("stretch_id", ForeignKey("stretches.id")),
    Index(None, "run_id", "iteration"),
    Index(None, "stretch_id", "iteration"),
    Index(None, "iteration"),
)

comparisons = Table(
    "comparisons",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("record", _HEX, nullable=False),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False, index=True),
    Column("engine", String, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("recipe", String(32), nullable=False),
    Column("rounding", String(16)),
    Column("device", String(32), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("torch", String(64), nullable=False),
    Column("base_digest", _HEX, nullable=False),
    Column("served_digest", _HEX, nullable=False),
    Column("surviving", Float),
    Column("rounded_away", Float),
    Column("compared_at", String(32), nullable=False),
    UniqueConstraint("record", "engine"),
)

alias_moves = Table(
    "alias_moves",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("record", _HEX, nullable=False, unique=True),
    Column("folded", String(128), nullable=False),  # the name in lower case: aliases do not differ in case only
    Column("name", String(128), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("before", _HEX),  # digests, not ids: an alias outlives its adapter
    Column("after", _HEX),
    Column("moved_at", String(32), nullable=False),
    Column("moved_by", String, nullable=False),
    Column("stands", Boolean, nullable=False),  # the alias's last move, and not its removal
    Index(None, "folded", "sequence", "moved_at", "record"),
    Index(None, "stands", "folded"),
    Index(None, "after", "stands"),
)

score_runs = Table(
    "score_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("record", _HEX, nullable=False, unique=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False, index=True),
    Column("name", String),
    Column("status", String(16), nullable=False),
    Column("reason", String),  # why it stopped
    Column("result_digest", _HEX, nullable=False),
    Column("config_digest", _HEX),
    Column("path", String, nullable=False),
    Column("scored_at", String(32), nullable=False),
    Column("scored_by", String, nullable=False),
    Index(None, "scored_at", "record"),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
)

scores = Table(
    "scores",
    metadata,
    Column("score_run_id", ForeignKey("score_runs.id"), primary_key=True),
    Column("metric_id", ForeignKey("metrics.id"), primary_key=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False),
    Column("value", Float, nullable=False),
    Column("stands", Boolean, nullable=False),  # the newest of this metric, of the adapter's runs that completed
    Index(None, "metric_id", "stands", "value", "adapter_id"),
    Index(None, "adapter_id", "metric_id", "stands", "value"),
    sqlite_with_rowid=False,
)

removals = Table(
    "removals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("record", _HEX, nullable=False, unique=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False, index=True),
    Column("removed_at", String(32), nullable=False),
    Column("removed_by", String, nullable=False),
    Column("reason", String),
)

# Few adapters differ in these facts, and any of them may be asked for with any other: so every combination that occurs
# is a row, and the adapters that have it are listed by time. A search reads the lists of the combinations that match.
facets = Table(
    "facets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("base_name", String, nullable=False),  # empty for none
    Column("r", Integer, nullable=False),
    Column("lora_alpha", Float, nullable=False),
    Column("use_rslora", Boolean, nullable=False),
    Column("verdict", String(16), nullable=False),  # empty for none
    UniqueConstraint("base_name", "r", "lora_alpha", "use_rslora", "verdict"),
)

faceted = Table(
    "faceted",
    metadata,
    Column("facet_id", ForeignKey("facets.id"), primary_key=True),
    Column("first_exported_at", String(32), primary_key=True),
    Column("adapter_id", ForeignKey("adapters.id"), primary_key=True),
    Index(None, "adapter_id"),
    sqlite_with_rowid=False,
)

marks = Table("marks", metadata, Column("name", String(16), primary_key=True))
"""What is to be known of the index as a whole."""

STALE = "stale"
"""The mark of an index that came from an older schema, whose rows lack what it did not keep."""
