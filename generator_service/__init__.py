"""The generator service: tokens out of token ids and encoder results."""
