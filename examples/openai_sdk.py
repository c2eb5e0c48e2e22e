"""Embed with the official OpenAI SDK: only the base URL differs."""

from __future__ import annotations

import os

import openai

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


def main() -> None:
    """Embed two texts, then an unknown model to see the error."""
    with openai.OpenAI(base_url=URL, api_key="none") as client:
        print("models:", [model.id for model in client.models.list()])
        answer = client.embeddings.create(model="minilm", input=["hello world", "goodbye"])
        for item in answer.data:
            print(item.index, len(item.embedding), item.embedding[:3])
        try:
            client.embeddings.create(model="no-such-model", input="hello")
        except openai.NotFoundError as error:
            print("refused:", error.code)


if __name__ == "__main__":
    main()
