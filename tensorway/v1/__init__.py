"""Generated from protos/tensorway/v1 by `make protos`."""
