"""HTTP for callbacks: `callbacks_app(client, secret)` is an ASGI application, for a server, Starlette or FastAPI.

What it answers is said in `docs/ingress.md`.
"""

try:
    import starlette as _starlette  # noqa: F401  so that what is missing is named first
except ImportError as error:
    raise ImportError("awa_asyncio.web needs starlette: pip install 'awa-queue[web]'") from error

from awa_asyncio.web.callbacks import CallbacksApp, callbacks_app
from awa_proto.callbacks.signature import sign

__all__ = ["CallbacksApp", "callbacks_app", "sign"]
