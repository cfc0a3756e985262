"""The HTTP API: FastAPI routes over the pool's port."""
