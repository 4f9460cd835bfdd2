"""Serving a policy: an engine that answers many requests at once, the OpenAI-compatible API, and the page."""
