"""The commands of `tensorway`, one a file."""
