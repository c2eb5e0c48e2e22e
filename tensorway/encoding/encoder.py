"""From images to features: read, look up, make ready, encode, put together."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

from PIL import Image as Pillow

from tensorway import images
from tensorway.encoder import Preprocessed, VisionEncoderBackend, check_backend
from tensorway.encoding import metrics
from tensorway.encoding.admission import Admission, Room
from tensorway.encoding.batcher import Batcher, Load
from tensorway.encoding.fetch import Fetcher
from tensorway.encoding.flights import Flights
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.encoding.sources import Sources, bad_image
from tensorway.encoding.together import together
from tensorway.errors import InvalidArgument
from tensorway.handoff.elements import Rows, element_type, first_not_finite
from tensorway.handoff.features import Features, stacked
from tensorway.images import Encoded
from tensorway.options import MIB
from tensorway.row_cache import RowCache
from tensorway.v1 import handoff_pb2

Place = tuple[int, Encoded]
"""An image and its place in the request."""

_PROOF_SIDE = 64


class Encoder:
    """A backend with all that is around it; an async context manager."""

    def __init__(
        self,
        backend: VisionEncoderBackend,
        options: EncoderOptions | None = None,
        image_options: ImageOptions | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        options = options or EncoderOptions()
        check_backend(backend)
        self.backend = backend
        self.identity = handoff_pb2.EncoderIdentity()
        self.hidden_size = 0
        self._images = image_options or ImageOptions()
        self._fetcher = fetcher or Fetcher(self._images)
        self._sources = Sources(self._images, self._fetcher)
        self._admission = Admission(options.max_pending_images, options.max_pending_mib * MIB)
        self._batcher = Batcher(backend, options.encoder_timeout)
        self._cache = RowCache(options.encoder_cache_mib * MIB)
        self._flights = Flights()
        self._caching = options.encoder_cache_mib > 0
        self._serial = itertools.count()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._fetcher)
        self._stack.push_async_callback(self._batcher.close)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def on_crash(self, tell: Callable[[BaseException], None]) -> None:
        """Call `tell` with the error, if what drives the backend ever ends by one."""
        self._batcher.on_crash(tell)

    @property
    def pending(self) -> int:
        """Images that are in the encoder now."""
        return self._admission.images

    def hold(self, features: Features | None) -> AbstractContextManager[None]:
        """Hold room for features that are not sent yet; ResourceExhausted when there is none."""
        return self._admission.hold(0 if features is None else features.rows.nbytes)

    async def load(self, model_id: str, name: str = "") -> None:
        """Build the backend and encode one picture, which tells its width and type."""
        await self._batcher.load(model_id)
        self.identity = handoff_pb2.EncoderIdentity(
            model=name or model_id or type(self.backend).__name__,
            revision=self.backend.revision,
            preprocessing=f"{self.backend.preprocessing} on {self._images.image_background}",
        )
        proof = await self.encode([handoff_pb2.ImageInput(data=_proof())])
        self.identity.element_type = element_type(proof.rows.dtype)
        self.hidden_size = proof.rows.shape[1]

    async def encode(self, inputs: Sequence[handoff_pb2.ImageInput]) -> Features:
        """The features of a request's images, in order."""
        self._sources.check(inputs)
        with self._admission.enter(len(inputs)) as room:
            room.take(sum(self._sources.size(image) for image in inputs))
            sources = await self._sources.read(inputs)
            rows, token = await self._rows(sources, room), self.backend.image_token_id
            features = await asyncio.to_thread(stacked, rows, token)
        metrics.PIXELS.inc(sum(source.pixels for source in sources))
        metrics.ROWS.inc(len(features.rows))
        return features

    async def _rows(self, sources: Sequence[Encoded], room: Room) -> list[Rows]:
        keys = await self._keys(sources)
        places = dict(zip(keys, enumerate(sources), strict=True))
        missing = [key for key in places if key not in self._cache and key not in self._flights]
        room.take(sum(places[key][1].decoded_bytes for key in missing))
        # All images are made ready before the first is encoded: one bad one costs no GPU work.
        prepared = await self._batcher.preprocess([self._load(*places[key]) for key in missing])
        ready = dict(zip(missing, prepared, strict=True))
        rows = await together(self._one(key, places[key], ready.get(key)) for key in places)
        found = dict(zip(places, rows, strict=True))
        return [found[key] for key in keys]

    async def _keys(self, sources: Sequence[Encoded]) -> list[bytes]:
        if not self._caching:
            return [next(self._serial).to_bytes(8, "little") for _ in sources]
        context = self.identity.SerializeToString(deterministic=True)
        return await asyncio.to_thread(lambda: [source.key(context) for source in sources])

    async def _one(self, key: bytes, place: Place, ready: Preprocessed | None) -> Rows:
        if (rows := self._cache.get(key)) is not None:
            metrics.IMAGES.labels("cached").inc()
            return rows
        metrics.IMAGES.labels("shared" if key in self._flights else "encoded").inc()
        try:
            return await self._flights.join(key, lambda: self._forward(key, place, ready))
        except InvalidArgument as error:
            raise bad_image(place[0], error) from None

    async def _forward(self, key: bytes, place: Place, ready: Preprocessed | None) -> Rows:
        # Rows may have left the cache since we looked.
        ready = ready or (await self._batcher.preprocess([self._load(*place)]))[0]
        rows = await self._batcher.forward(ready)
        await asyncio.to_thread(self._check, rows)
        self._cache.put(key, rows)
        metrics.CACHE_BYTES.set(self._cache.bytes)
        return rows

    def _check(self, rows: Rows) -> None:
        """Raise RuntimeError for rows that a generator would refuse: nobody's fault but ours."""
        if self.hidden_size and rows.shape[1] != self.hidden_size:
            raise RuntimeError(
                f"the encoder gives rows of {rows.shape[1]} numbers, and gave {self.hidden_size}"
            )
        if (place := first_not_finite(rows)) is not None:
            raise RuntimeError(f"the encoder gives NaN or infinity, first at {place} of its rows")

    def _load(self, index: int, source: Encoded) -> tuple[int, Load]:
        return index, partial(images.decode, source, self._images.image_background)


def _proof() -> bytes:
    png = io.BytesIO()
    Pillow.new("RGB", (_PROOF_SIDE, _PROOF_SIDE), "grey").save(png, "PNG")
    return png.getvalue()
