"""What an encoder counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

IMAGES = Counter(
    "tensorway_encoder_images",
    "Images asked for, by where their rows came from: encoded, cached or shared.",
    ["origin"],
)
PIXELS = Counter("tensorway_encoder_pixels", "Pixels of the images asked for.")
ROWS = Counter("tensorway_encoder_rows", "Rows of the images asked for.")
BATCH = Histogram(
    "tensorway_encoder_batch_images",
    "Images in one call of the encoder.",
    buckets=tuple(2**power for power in range(9)),
)
CACHE_BYTES = Gauge("tensorway_encoder_cache_bytes", "Bytes of rows in the cache.")
