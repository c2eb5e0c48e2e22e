"""Running an encoder: images in, features out; in the encoder service and inline."""
