"""EncoderResult: what an encoder hands to a generator, checked, sent in pieces, rebuilt."""
