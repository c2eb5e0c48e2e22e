"""The encoder service: images in, features out, or straight on to a generator."""
