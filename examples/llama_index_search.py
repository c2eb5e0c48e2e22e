"""Compare texts with LlamaIndex's OpenAI embedding."""

from __future__ import annotations

import os

from llama_index.core.base.embeddings.base import similarity
from llama_index.embeddings.openai import OpenAIEmbedding

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
TEXTS = ["The cat sleeps on the sofa.", "Stocks fell on Monday.", "Rain is expected."]


def main() -> None:
    """Print the text that is nearest to a question."""
    # `model` only takes OpenAI's own names; `model_name` is sent as it is.
    embedding = OpenAIEmbedding(model_name="minilm", api_base=URL, api_key="none")
    query = embedding.get_query_embedding("Rain is expected.")
    vectors = embedding.get_text_embedding_batch(TEXTS)
    best = max(range(len(TEXTS)), key=lambda index: similarity(query, vectors[index]))
    print("nearest:", TEXTS[best])


if __name__ == "__main__":
    main()
