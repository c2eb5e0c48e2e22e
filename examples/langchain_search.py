"""Search a few documents with LangChain."""

from __future__ import annotations

import os

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
DOCUMENTS = ["The cat sleeps on the sofa.", "Stocks fell on Monday.", "Rain is expected."]


def main() -> None:
    """Print the document that is nearest to a question."""
    embeddings = OpenAIEmbeddings(
        base_url=URL,
        api_key="none",
        model="minilm",
        # Otherwise LangChain sends OpenAI's own token ids, which mean nothing to this model.
        check_embedding_ctx_length=False,
    )
    store = InMemoryVectorStore.from_texts(DOCUMENTS, embeddings)
    for found in store.similarity_search("Rain is expected.", k=1):
        print("nearest:", found.page_content)


if __name__ == "__main__":
    main()
