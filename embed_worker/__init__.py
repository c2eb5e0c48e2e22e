"""Serves one embedding model with vLLM's pooling runner."""
