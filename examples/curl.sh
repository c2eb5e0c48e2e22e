#!/bin/sh
# The REST API from a shell.
set -eu
URL=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}

curl -sS "$URL/models"
echo
curl -sS "$URL/embeddings" -d '{"model": "minilm", "input": ["hello world", "goodbye"]}'
echo
curl -sS "$URL/embeddings" -d '{"model": "minilm", "input": "hello", "encoding_format": "base64"}'
echo
# An error: status 404, and why.
curl -sS -w '\n%{http_code}\n' "$URL/embeddings" -d '{"model": "no-such-model", "input": "hello"}'
