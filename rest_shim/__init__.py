"""OpenAI's HTTP API over Tensorway's gRPC services: it translates and delegates."""
