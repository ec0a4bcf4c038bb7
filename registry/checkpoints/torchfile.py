"""A torch.save file: its contents, and the bytes of those tensors that are asked for. Joins the container, the pickle
and the one pass over the file; knows nothing of what a checkpoint means."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike

from registry.checkpoints.archive import Archive, Record, read_archive
from registry.checkpoints.pickled import MAX_PICKLE, TensorRef, load
from registry.checkpoints.source import Range, Source
from registry.core.digest import Digest
from registry.core.errors import MalformedFile, UnsupportedLora
from registry.core.tensor import Tensor, extent


@dataclass(frozen=True, slots=True)
class TorchFile:
    """An open torch.save file.

    Attributes:
        source: the open file.
        archive: where its records lie.
        contents: the saved object, as `pickled.load` gives it.
        byteorder: of the tensors' elements: `little` or `big`.
    """

    source: Source
    archive: Archive
    contents: object
    byteorder: str

    def read(
        self, refs: Iterable[TensorRef], progress: Callable[[int], None] | None = None
    ) -> tuple[Digest, dict[TensorRef, Tensor]]:
        """Read the whole file once; keep the bytes that `refs` cover.

        Args:
            refs: tensors found in `contents`.
            progress: called with the number of bytes read since the last call; they add up to the file's size.

        Returns:
            The sha256 of the file, and each tensor over the bytes that were hashed.

        Raises:
            MalformedFile: a record is missing, damaged, or of another size than the pickle says.
            UnsupportedLora: a tensor's stored bytes are not its values (conjugated or negated lazily).
            ChangedWhileRead: the file is not what it was when it was opened.
        """
        places = {ref: self._locate(ref) for ref in refs}
        ranges = {ref: _covered(ref, record) for ref, record in places.items()}
        whole = {Range(record.start, record.stop) for record in places.values()}
        streamed = self.source.stream(ranges.values(), progress, checked=whole)
        for ref, record in places.items():
            _require_crc(self.source, _record_name(ref), record, streamed.crcs[Range(record.start, record.stop)])
        big_endian = self.byteorder == "big"
        return streamed.digest, {
            ref: Tensor(ref.dtype, ref.shape, ref.stride, streamed.view(*covered), big_endian)
            for ref, covered in ranges.items()
        }

    def _locate(self, ref: TensorRef) -> Record:
        name = _record_name(ref)
        if ref.conj or ref.neg:
            raise UnsupportedLora(
                "the tensor is saved as a lazily conjugated or negated view",
                path=self.source.path,
                key=name,
                hint="Save it with .resolve_conj().resolve_neg()",
            )
        # Dimensions of stride 0 repeat bytes for free in the file, and not in memory.
        if math.prod(ref.shape) * ref.dtype.itemsize > self.source.size:
            raise MalformedFile(
                "the tensor is expanded to more bytes than the file has", path=self.source.path, key=name
            )
        record = self.archive.locate(self.source, name)
        if record.stop - record.start != ref.storage_nbytes:
            raise MalformedFile(
                "the record's size is not that of the storage",
                path=self.source.path,
                key=name,
                expected=f"{ref.storage_nbytes} bytes",
                found=f"{record.stop - record.start}",
            )
        return record


@contextmanager
def open_torch_file(path: str | PathLike[str]) -> Iterator[TorchFile]:
    """Open a torch.save file and read everything but its tensors. It is opened once, here.

    Raises:
        NotFound: there is no such file.
        MalformedFile: it is not a torch.save file, or is damaged.
        UnsafePickle: its pickle holds what a checkpoint never needs.
        StorageError: it cannot be read.
    """
    with Source(path) as source:
        archive = read_archive(source)
        contents = load(_peek_record(source, archive, "data.pkl"), source.path)
        yield TorchFile(source, archive, contents, _byteorder(source, archive))


def _peek_record(source: Source, archive: Archive, name: str) -> bytes:
    record = archive.locate(source, name)
    size = record.stop - record.start
    if size > MAX_PICKLE:
        raise MalformedFile("too large", path=source.path, key=name, expected=f"<= {MAX_PICKLE} bytes", found=size)
    data = source.peek(record.start, size)
    _require_crc(source, name, record, zlib.crc32(data))
    return data


def _byteorder(source: Source, archive: Archive) -> str:
    if "byteorder" not in archive.entries:  # torch before 2.1, which ran on little-endian machines
        return "little"
    order = _peek_record(source, archive, "byteorder")
    if order not in (b"little", b"big"):
        raise MalformedFile("unknown byte order", path=source.path, key="byteorder", found=ascii(order[:20]))
    return order.decode()


def _require_crc(source: Source, name: str, record: Record, found: int) -> None:
    if record.crc32 not in (0, found):  # 0: torch was told not to compute them
        raise MalformedFile(
            "CRC-32 mismatch", path=source.path, key=name, expected=f"{record.crc32:08x}", found=f"{found:08x}"
        )


def _record_name(ref: TensorRef) -> str:
    return f"data/{ref.storage_key}"


def _covered(ref: TensorRef, record: Record) -> Range:
    """The bytes from the view's first element to its last."""
    count, itemsize = extent(ref.shape, ref.stride), ref.dtype.itemsize
    start = record.start + ref.offset * itemsize if count else record.start
    return Range(start, start + count * itemsize)
