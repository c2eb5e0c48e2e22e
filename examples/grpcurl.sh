#!/bin/sh
# The gRPC API from a shell; the server describes itself, so no proto files are needed.
set -eu
ROUTER=${ROUTER:-127.0.0.1:50051}

# What is there, and what one method takes.
grpcurl -plaintext "$ROUTER" list
grpcurl -plaintext "$ROUTER" describe tensorway.v1.EmbedRequest

# Whether it serves, which models, and who serves them.
grpcurl -plaintext "$ROUTER" grpc.health.v1.Health/Check
grpcurl -plaintext "$ROUTER" tensorway.v1.ModelService/ListModels
grpcurl -plaintext "$ROUTER" tensorway.v1.ModelService/ListWorkers

# Two texts, with a deadline of ten seconds.
grpcurl -plaintext -max-time 10 -d '{"model": "minilm", "texts": {"texts": ["hello", "goodbye"]}}' \
    "$ROUTER" tensorway.v1.EmbeddingService/Embed

# A stream: many requests over one call, each with an id, answered in any order.
grpcurl -plaintext -d @ "$ROUTER" tensorway.v1.EmbeddingService/EmbedStream <<'END'
{"request": {"request_id": "first", "model": "minilm", "texts": {"texts": ["one"]}}}
{"request": {"request_id": "second", "model": "minilm", "texts": {"texts": ["two"]}}}
END

# An error: its code, and what is wrong. grpcurl's own status is the code and 64.
grpcurl -plaintext -d '{"model": "minilm", "texts": {"texts": ["hello", ""]}}' \
    "$ROUTER" tensorway.v1.EmbeddingService/Embed || echo "status $?"
