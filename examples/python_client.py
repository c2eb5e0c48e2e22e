"""Embed over gRPC with the Python client: vectors arrive as a NumPy array."""

from __future__ import annotations

import os

from tensorway.client import Client
from tensorway.errors import NotFound

ROUTER = os.environ.get("ROUTER", "127.0.0.1:50051")


def main() -> None:
    """Embed two texts, then batches in bulk, then an unknown model to see the error."""
    with Client(ROUTER) as client:
        vectors = client.embed(["hello world", "goodbye"], model="minilm")
        print(vectors.shape, vectors.dtype)

        batches = [["one", "two"], ["three"], [""]]
        for result in sorted(client.embed_stream(batches, model="minilm"), key=lambda r: r.index):
            shape = None if result.vectors is None else result.vectors.shape
            print("batch", result.index, shape, result.error)

        try:
            client.embed("hello", model="no-such-model")
        except NotFound as error:
            print("refused:", error.reason)


if __name__ == "__main__":
    main()
