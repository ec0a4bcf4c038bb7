"""Parents, score runs and removals; the facts that searches combine; and a mark that rows are to be derived anew."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    _lineage()
    _scores()
    _removals()
    _facets()
    op.create_table(
        "marks",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_marks")),
    )
    op.execute("INSERT INTO marks (name) SELECT 'stale' WHERE EXISTS (SELECT 1 FROM exports)")


def _lineage() -> None:
    with op.batch_alter_table("adapters") as adapters:
        adapters.add_column(sa.Column("verdict", sa.String(length=16), nullable=True))
        adapters.add_column(sa.Column("removed_at", sa.String(length=32), nullable=True))
        adapters.drop_index("ix_adapters_first_exported_at_digest")
        adapters.create_index(
            "ix_adapters_removed_at_first_exported_at_digest", ["removed_at", "first_exported_at", "digest"]
        )
    op.create_table(
        "stretches",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("base_name", sa.String(), nullable=False),
        sa.Column("base_revision", sa.String(), nullable=False),
        sa.Column("warm_start", sa.String(length=64), nullable=False),
        sa.Column("resumed_from", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stretches")),
        sa.UniqueConstraint(
            "run",
            "base_name",
            "base_revision",
            "warm_start",
            "resumed_from",
            name=op.f("uq_stretches_run_base_name_base_revision_warm_start_resumed_from"),
        ),
    )
    op.create_index(op.f("ix_stretches_warm_start"), "stretches", ["warm_start"])
    op.create_index(op.f("ix_stretches_resumed_from"), "stretches", ["resumed_from"])
    with op.batch_alter_table("exports") as exports:
        exports.add_column(sa.Column("warm_start", sa.String(length=64), nullable=True))
        exports.add_column(sa.Column("resumed_from", sa.String(length=64), nullable=True))
        exports.add_column(sa.Column("stretch_id", sa.Integer(), nullable=True))
        exports.create_foreign_key(op.f("fk_exports_stretch_id_stretches"), "stretches", ["stretch_id"], ["id"])
        exports.create_index("ix_exports_stretch_id_iteration", ["stretch_id", "iteration"])
        exports.create_index("ix_exports_warm_start", ["warm_start"])
        exports.create_index("ix_exports_resumed_from", ["resumed_from"])
        exports.create_index("ix_exports_iteration", ["iteration"])


def _scores() -> None:
    op.create_table(
        "score_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("record", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("result_digest", sa.String(length=64), nullable=False),
        sa.Column("config_digest", sa.String(length=64), nullable=True),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("scored_at", sa.String(length=32), nullable=False),
        sa.Column("scored_by", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_score_runs_adapter_id_adapters")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_score_runs")),
        sa.UniqueConstraint("record", name=op.f("uq_score_runs_record")),
    )
    op.create_index(op.f("ix_score_runs_adapter_id"), "score_runs", ["adapter_id"])
    op.create_index(op.f("ix_score_runs_scored_at_record"), "score_runs", ["scored_at", "record"])
    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
        sa.UniqueConstraint("name", name=op.f("uq_metrics_name")),
    )
    op.create_table(
        "scores",
        sa.Column("score_run_id", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("stands", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_scores_adapter_id_adapters")),
        sa.ForeignKeyConstraint(["metric_id"], ["metrics.id"], name=op.f("fk_scores_metric_id_metrics")),
        sa.ForeignKeyConstraint(["score_run_id"], ["score_runs.id"], name=op.f("fk_scores_score_run_id_score_runs")),
        sa.PrimaryKeyConstraint("score_run_id", "metric_id", name=op.f("pk_scores")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_scores_metric_id_stands_value_adapter_id"), "scores", ["metric_id", "stands", "value", "adapter_id"]
    )
    op.create_index(
        op.f("ix_scores_adapter_id_metric_id_stands_value"), "scores", ["adapter_id", "metric_id", "stands", "value"]
    )


def _removals() -> None:
    op.create_table(
        "removals",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("record", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.Column("removed_at", sa.String(length=32), nullable=False),
        sa.Column("removed_by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_removals_adapter_id_adapters")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_removals")),
        sa.UniqueConstraint("record", name=op.f("uq_removals_record")),
    )
    op.create_index(op.f("ix_removals_adapter_id"), "removals", ["adapter_id"])


def _facets() -> None:
    op.create_table(
        "facets",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("base_name", sa.String(), nullable=False),
        sa.Column("r", sa.Integer(), nullable=False),
        sa.Column("lora_alpha", sa.Float(), nullable=False),
        sa.Column("use_rslora", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facets")),
        sa.UniqueConstraint(
            "base_name",
            "r",
            "lora_alpha",
            "use_rslora",
            "verdict",
            name=op.f("uq_facets_base_name_r_lora_alpha_use_rslora_verdict"),
        ),
    )
    op.create_table(
        "faceted",
        sa.Column("facet_id", sa.Integer(), nullable=False),
        sa.Column("first_exported_at", sa.String(length=32), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_faceted_adapter_id_adapters")),
        sa.ForeignKeyConstraint(["facet_id"], ["facets.id"], name=op.f("fk_faceted_facet_id_facets")),
        sa.PrimaryKeyConstraint("facet_id", "first_exported_at", "adapter_id", name=op.f("pk_faceted")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_faceted_adapter_id"), "faceted", ["adapter_id"])
