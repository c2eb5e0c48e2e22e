"""What the generator counts, beside vLLM's own metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from tensorway.metrics import LATENCY_BUCKETS

IMAGES = Counter(
    "generator_images", "Images in prompts, by where they were encoded.", ["model", "path"]
)
RESULT_BYTES = Counter("generator_result_bytes", "Bytes of encoder results received.", ["model"])
PROMPT_TOKENS = Counter("generator_prompt_tokens", "Tokens of prompts, images expanded.", ["model"])
TOKENS = Counter("generator_tokens", "Tokens generated.", ["model"])
FIRST_TOKEN = Histogram(
    "generator_first_token_seconds",
    "Time from a request's arrival to its first token, in seconds.",
    ["model"],
    buckets=LATENCY_BUCKETS,
)
IN_FLIGHT = Gauge("generator_requests_in_flight", "Requests not finished yet.")
