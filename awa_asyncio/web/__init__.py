"""HTTP for callbacks: `callbacks_app(client, secret)` is an ASGI application, for a server, Starlette or FastAPI.

What it answers is said in `docs/ingress.md`.
"""

from awa_asyncio.web.callbacks import CallbacksApp, callbacks_app
from awa_proto.callbacks.signature import sign

__all__ = ["CallbacksApp", "callbacks_app", "sign"]
