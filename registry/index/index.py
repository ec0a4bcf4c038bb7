"""The index: each method is one transaction of questions or of updates, in terms of the core's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from registry.core.alias import AliasMove
from registry.core.digest import Digest
from registry.core.errors import MalformedFile
from registry.core.holds import Hold
from registry.core.records import Record
from registry.core.refs import AliasName, RunIteration
from registry.core.search import NEWEST, Criteria, Order
from registry.index import answers, scores, search
from registry.index.database import Database
from registry.index.holds import holds
from registry.index.writing import Rows

if TYPE_CHECKING:
    from registry.core.lineage import Kind, Lineage, Start
    from registry.core.retention import Expendable, Policy
    from registry.core.summary import AdapterSummary, IndexChange, ScorePoint, ScoreRunSummary


class Moving:
    """The index while nobody else can change it: no alias moves, no adapter is published or removed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def last(self, name: AliasName) -> AliasMove | None:
        """The last move of the alias that is called this but for case."""
        return answers.last_move(self._connection, name)

    def holds(self, digest: Digest) -> list[Hold]:
        """Who relies on this adapter."""
        return holds(self._connection, digest)

    def add(self, new: Iterable[Record]) -> None:
        """As `Index.add`."""
        Rows(new).write(self._connection)


class Index:
    """The index over one database. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def is_empty(self) -> bool:
        """Whether it knows no adapter, or there is no database yet; asking makes none."""
        if not self._database.exists():
            return True
        with self._database.reading() as connection:
            return answers.is_empty(connection)

    def is_stale(self) -> bool:
        """Whether its rows came from an older schema, so that some facts are missing until it is rebuilt."""
        if not self._database.exists():
            return False
        with self._database.reading() as connection:
            return answers.is_stale(connection)

    def is_behind(self) -> bool:
        """Whether it is empty or stale."""
        if not self._database.exists():
            return True
        with self._database.reading() as connection:
            return answers.is_behind(connection)

    def add(self, new: Iterable[Record]) -> None:
        """Derive rows from records. A record that is there already changes nothing.

        Raises:
            MalformedFile: a record does not say what one of its kind must. None of them is added.
        """
        rows = Rows(new)
        with self._database.writing() as connection:
            rows.write(connection)

    @contextmanager
    def adding(self) -> Iterator[Callable[[Iterable[Record]], None]]:
        """Hold the write lock from a look at the store to what follows from it: gives a function that does what `add`
        does, for records that count when the block ends."""
        with self._database.writing() as connection:
            yield lambda new: Rows(new).write(connection)

    def rebuild(
        self, new: Iterable[Record], refused: Callable[[Record, MalformedFile], None]
    ) -> tuple[IndexChange, ...]:
        """Derive all rows anew, as `registry.index.rebuild` does, and tell what differed."""
        from registry.index.rebuild import rebuild  # noqa: PLC0415  what few commands need, the others do not load

        with self._database.writing() as connection:
            return rebuild(connection, new, refused)

    def set_aside_if_damaged(self) -> str | None:
        """Put a database that is not sound out of the way, so that the next use makes a new one; says where it is."""
        return None if self._database.is_sound() else self._database.set_aside()

    @contextmanager
    def moving(self) -> Iterator[Moving]:
        """Hold the write lock from a look to what follows from it. What was added counts when the block ends."""
        with self._database.writing() as connection:
            yield Moving(connection)

    def adapter(self, digest: Digest) -> AdapterSummary | None:
        """One adapter, or None if the index has not heard of it."""
        with self._database.reading() as connection:
            return answers.adapter(connection, digest)

    def expendable(self, policy: Policy) -> list[Expendable]:
        """The adapters that a policy lets go, oldest first."""
        from registry.index.expendable import expendable  # noqa: PLC0415

        with self._database.reading() as connection:
            return expendable(connection, policy)

    def digests(self) -> list[Digest]:
        """All adapters that it knows, removed ones too, sorted."""
        with self._database.reading() as connection:
            return answers.digests(connection)

    def newest(self, limit: int) -> list[AdapterSummary]:
        """The adapters that were exported last, newest first."""
        with self._database.reading() as connection:
            return search.find(connection, Criteria(), NEWEST, limit)

    def find(
        self, criteria: Criteria, order: Order, limit: int, few: int = search.FEW
    ) -> tuple[list[AdapterSummary], list[str]]:
        """The first adapters that meet all criteria, as `registry.index.search` finds them.

        Where there are none, also what was named that is not known, a clause each.
        """
        with self._database.reading() as connection:
            found = search.find(connection, criteria, order, limit, few)
            return found, [] if found else search.unknown(connection, criteria, order)

    def exported(self, of: RunIteration, limit: int) -> list[Digest]:
        """Up to `limit` adapters that a run exported at an iteration, sorted."""
        with self._database.reading() as connection:
            return answers.exported(connection, of, limit)

    def exported_from(self, checkpoint: Digest, limit: int) -> list[Digest]:
        """Up to `limit` adapters that a checkpoint was exported as, removed ones too, sorted."""
        with self._database.reading() as connection:
            return answers.exported_from(connection, checkpoint, limit)

    def last_move(self, name: AliasName) -> AliasMove | None:
        """The last move of the alias that is called this but for case."""
        with self._database.reading() as connection:
            return answers.last_move(connection, name)

    def aliases(self) -> list[AliasMove]:
        """Every alias as it stands, by name."""
        with self._database.reading() as connection:
            return answers.aliases(connection)

    def alias_history(self, name: AliasName) -> list[AliasMove]:
        """All moves of the alias that is called this but for case, oldest first."""
        with self._database.reading() as connection:
            return answers.alias_history(connection, name)

    def score_runs(self, of: Digest | None, limit: int) -> list[ScoreRunSummary]:
        """The score runs that were added last, of one adapter or of all, newest first."""
        with self._database.reading() as connection:
            return scores.score_runs_of(connection, of, limit)

    def run_scores(self, run: str, metric: str) -> list[ScorePoint]:
        """What stands for the adapters that a run exported, by iteration and adapter; without iteration first."""
        with self._database.reading() as connection:
            return scores.run_scores(connection, run, metric)

    def run_metrics(self, run: str, limit: int) -> list[str] | None:
        """Up to `limit` metrics of which scores stand for a run's adapters, by name; None if there is no such run."""
        with self._database.reading() as connection:
            return scores.run_metrics(connection, run, limit)

    def lineage(self, start: Start, *, up: bool, down: bool, depth: int | None, limit: int) -> Lineage | None:
        """As `registry.index.ancestry.lineage_of`."""
        from registry.index.ancestry import lineage_of  # noqa: PLC0415

        with self._database.reading() as connection:
            return lineage_of(connection, start, up=up, down=down, depth=depth, limit=limit)

    def stated_above(
        self, *, warm_start: str | None, resumed_from: str | None, run: str | None, checkpoint: str
    ) -> tuple[set[str], set[str]]:
        """As `registry.index.ancestry.stated_above`."""
        from registry.index.ancestry import stated_above  # noqa: PLC0415

        with self._database.reading() as connection:
            return stated_above(
                connection, warm_start=warm_start, resumed_from=resumed_from, run=run, checkpoint=checkpoint
            )

    def known(self, kind: Kind, prefix: str, limit: int) -> list[Digest]:
        """Up to `limit` adapters, removed ones too, or checkpoints whose digest starts so, sorted."""
        from registry.index.kinship import digests_like  # noqa: PLC0415

        with self._database.reading() as connection:
            return [Digest(found) for found in digests_like(connection, kind, prefix, limit)]

    def knows_run(self, name: str) -> bool:
        """Whether anything was exported of a run of this name."""
        from registry.index.kinship import knows_run  # noqa: PLC0415

        with self._database.reading() as connection:
            return knows_run(connection, name)
