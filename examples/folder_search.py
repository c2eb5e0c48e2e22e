"""Search the texts of a folder by meaning, with Qdrant as a library: no server, no upload.

>>> python folder_search.py FOLDER "How do I get my money back?"

The vectors stay in FOLDER/.search; only paragraphs that are new are embedded.
"""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import closing
from pathlib import Path

from qdrant_client import QdrantClient, models

from tensorway.client import Client

ROUTER = os.environ.get("ROUTER", "127.0.0.1:50051")
MODEL = "minilm"
NAME = "paragraphs"


def paragraphs(folder: Path) -> dict[str, dict[str, str]]:
    """The paragraphs of all text files, by an id that is made of file and text."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix in {".md", ".txt"}):
        file = str(path.relative_to(folder))
        for text in filter(None, map(str.strip, path.read_text().split("\n\n"))):
            found[str(uuid.uuid5(uuid.NAMESPACE_URL, f"{file} {text}"))] = {
                "file": file,
                "text": text,
            }
    return found


def update(store: QdrantClient, client: Client, folder: Path) -> None:
    """Make the store what the folder is."""
    if not store.collection_exists(NAME):
        (width,) = (m.dimensions for m in client.models() if MODEL in (m.name, *m.aliases))
        like = models.VectorParams(size=width, distance=models.Distance.COSINE)
        store.create_collection(NAME, vectors_config=like)
    current = paragraphs(folder)
    stored = {str(point.id) for point in store.scroll(NAME, limit=1_000_000)[0]}
    if gone := stored - current.keys():
        store.delete(NAME, points_selector=list(gone))
    if new := current.keys() - stored:
        texts = [current[key]["text"] for key in new]
        # Cut what is too long for the model, instead of an error.
        vectors = client.embed(texts, model=MODEL, truncate_prompt_tokens=-1)
        payload = [current[key] for key in new]
        store.upload_collection(NAME, vectors=vectors, payload=payload, ids=list(new))
    print(f"{len(new)} new, {len(gone)} gone, {len(current)} paragraphs")


def main(folder: Path, question: str) -> None:
    """Print the three paragraphs that are nearest to a question."""
    with Client(ROUTER) as client, closing(QdrantClient(path=str(folder / ".search"))) as store:
        update(store, client, folder)
        (vector,) = client.embed(question, model=MODEL)
        for found in store.query_points(NAME, query=vector, limit=3).points:
            where = found.payload or {}
            print(f"{found.score:.2f}  {where['file']}: {where['text']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
