"""A large request in pieces: the engine works on the first while the next is tokenised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from embed_worker.engine import Params, Rows
from embed_worker.engine_group import EngineGroup, merge
from embed_worker.tokenizer import Batch, BatchTokenizer, Field, Offsets, TextOptions
from embed_worker.vector_cache import VectorCache

# A millisecond of tokenising on many cores, and the work of some engine steps.
_CHARACTERS = 49152


class Pieces(NamedTuple):
    """Texts that are sure not to be refused, and how to cut them."""

    texts: Sequence[str]
    options: TextOptions
    cuts: Sequence[slice]
    tokenizer: BatchTokenizer
    most: Sequence[int]
    """Most tokens that each text can have."""

    @property
    def most_tokens(self) -> int:
        """Most tokens that all texts can have."""
        return sum(self.most)

    async def tokenize(self, cut: slice, field: Field) -> Batch:
        """Token ids of one piece."""

        def own(index: int) -> str:
            return field(cut.start + index)

        return await self.tokenizer.texts(self.texts[cut], self.options, own)

    async def run(
        self,
        first: Batch,
        engine: EngineGroup | VectorCache,
        params: Params,
        field: Field,
        counted: Callable[[int], None],
        *,
        bulk: bool,
    ) -> tuple[Rows, Offsets, Batch]:
        """Pool the first piece, and tokenise and pool the others.

        `counted` is told the most tokens that there can be whenever more of them are known.
        Returns the rows and offsets of all pieces as of one batch, and that batch.
        """
        batches = [first]
        counted(self._at_most(batches))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(engine.run(first, params, bulk=bulk))]
                for cut in self.cuts[1:]:
                    batches.append(await self.tokenize(cut, field))
                    tasks.append(group.create_task(engine.run(batches[-1], params, bulk=bulk)))
                    counted(self._at_most(batches))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return *merge([task.result() for task in tasks]), joined(batches)

    def _at_most(self, known: Sequence[Batch]) -> int:
        """Most tokens that there can be, now that those of the first pieces are known."""
        left = self.most[self.cuts[len(known) - 1].stop :]
        return sum(batch.tokens for batch in known) + sum(left)


def pieces(texts: Sequence[str], tokenizer: BatchTokenizer, options: TextOptions) -> Pieces | None:
    """How to cut texts; None if they are few, or if one of them might be refused.

    A caller's mistake must not cost the engine anything, so that all of a request is checked
    before the first piece runs.
    """
    cuts = cut_up(texts)
    most = tokenizer.most_tokens(texts, options) if len(cuts) > 1 else None
    return None if most is None else Pieces(texts, options, cuts, tokenizer, most)


def cut_up(texts: Sequence[str], characters: int = _CHARACTERS) -> list[slice]:
    """Contiguous pieces of about so many characters."""
    before = [total // characters for total in accumulate(map(len, texts), initial=0)]
    starts = [at for at in range(1, len(texts)) if before[at] > before[at - 1]]
    return [slice(start, stop) for start, stop in pairwise([0, *starts, len(texts)])]


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of single texts, one after the other."""
    ids, offsets = merge([(batch.ids, batch.offsets) for batch in batches])
    return Batch(ids, offsets, batches[0].seconds)
