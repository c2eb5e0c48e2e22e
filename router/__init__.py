"""The front door: finds the workers of a model and shares its requests among them."""
