"""Comparisons of adapters with what engines were served, one row per engine."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("record", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("recipe", sa.String(length=32), nullable=False),
        sa.Column("rounding", sa.String(length=16), nullable=True),
        sa.Column("device", sa.String(length=32), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("torch", sa.String(length=64), nullable=False),
        sa.Column("base_digest", sa.String(length=64), nullable=False),
        sa.Column("served_digest", sa.String(length=64), nullable=False),
        sa.Column("surviving", sa.Float(), nullable=True),
        sa.Column("rounded_away", sa.Float(), nullable=True),
        sa.Column("compared_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_comparisons_adapter_id_adapters")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("record", "engine", name=op.f("uq_comparisons_record_engine")),
    )
    op.create_index(op.f("ix_comparisons_adapter_id"), "comparisons", ["adapter_id"])
