"""Adapters, checkpoints, runs, and the exports that join them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("tensor_digest", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("modules", sa.Integer(), nullable=False),
        sa.Column("r", sa.Integer(), nullable=False),
        sa.Column("lora_alpha", sa.Float(), nullable=False),
        sa.Column("use_rslora", sa.Boolean(), nullable=False),
        sa.Column("first_exported_at", sa.String(length=32), nullable=False),
        sa.CheckConstraint("lora_alpha <> 0", name=op.f("ck_adapters_lora_alpha_not_zero")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapters")),
        sa.UniqueConstraint("digest", name=op.f("uq_adapters_digest")),
    )
    op.create_index(op.f("ix_adapters_tensor_digest"), "adapters", ["tensor_digest"])
    op.create_index(op.f("ix_adapters_first_exported_at"), "adapters", ["first_exported_at"])
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("digest", name=op.f("uq_checkpoints_digest")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("name", name=op.f("uq_runs_name")),
    )
    op.create_table(
        "exports",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("record", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("base_name", sa.String(), nullable=True),
        sa.Column("base_revision", sa.String(), nullable=True),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("reader", sa.String(), nullable=False),
        sa.Column("exported_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_exports_adapter_id_adapters")),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_exports_checkpoint_id_checkpoints")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_exports_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exports")),
        sa.UniqueConstraint("record", name=op.f("uq_exports_record")),
    )
    op.create_index(op.f("ix_exports_adapter_id"), "exports", ["adapter_id"])
    op.create_index(op.f("ix_exports_checkpoint_id"), "exports", ["checkpoint_id"])
    op.create_index(op.f("ix_exports_run_id_iteration"), "exports", ["run_id", "iteration"])
