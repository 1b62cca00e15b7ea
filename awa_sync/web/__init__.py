"""HTTP for callbacks: `callbacks_app(client, secret)` is a WSGI application, for a server, Flask or Django.

What it answers is said in `docs/ingress.md`.
"""

from awa_proto.callbacks.signature import sign
from awa_sync.web.callbacks import CallbacksApp, callbacks_app

__all__ = ["CallbacksApp", "callbacks_app", "sign"]
