"""Moves of aliases; and the newest adapters in an order that does not depend on when the index learned of them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("record", sa.String(length=64), nullable=False),
        sa.Column("folded", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("before", sa.String(length=64), nullable=True),
        sa.Column("after", sa.String(length=64), nullable=True),
        sa.Column("moved_at", sa.String(length=32), nullable=False),
        sa.Column("moved_by", sa.String(), nullable=False),
        sa.Column("stands", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alias_moves")),
        sa.UniqueConstraint("record", name=op.f("uq_alias_moves_record")),
    )
    op.create_index(
        op.f("ix_alias_moves_folded_sequence_moved_at_record"),
        "alias_moves",
        ["folded", "sequence", "moved_at", "record"],
    )
    op.create_index(op.f("ix_alias_moves_stands_folded"), "alias_moves", ["stands", "folded"])
    op.create_index(op.f("ix_alias_moves_after_stands"), "alias_moves", ["after", "stands"])
    with op.batch_alter_table("adapters") as adapters:
        adapters.drop_index("ix_adapters_first_exported_at")
        adapters.create_index("ix_adapters_first_exported_at_digest", ["first_exported_at", "digest"])
