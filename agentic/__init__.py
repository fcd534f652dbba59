"""Train, evaluate and use LLM agents that analyse data."""

__version__ = "0.1.0"
