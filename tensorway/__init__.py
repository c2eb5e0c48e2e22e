"""What all services of Tensorway share; importing it needs neither torch nor vllm."""

__version__ = "0.1.0"
