"""A payment provider's webhooks, both ends: signed, tried again with back-off, and one delivered twice.

An order is paid by asking the provider and then waiting for its word, with no worker waiting: `WaitForCallback`. What
the provider says is sent to `/api/callbacks/{id}/resolve`, where the expressions of the job decide what it means. The
database is $AWA_DATABASE_URL.
"""

import http.client
import json
import secrets
import threading
import time
from dataclasses import dataclass
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import awa_sync as awa
from awa_sync.web import callbacks_app, sign

SECRET = secrets.token_hex(32)  # both ends have it; in production from the environment
client = awa.Client()
provider: list[tuple[str, int]] = []  # what it was asked to collect: where to answer, and how much


@dataclass
class PayOrder:
    """Which order, and how much it costs."""

    order: int
    amount: int


@client.task(PayOrder)
def pay_order(job: awa.Job[PayOrder]) -> awa.WaitForCallback:
    token = job.register_callback(
        timeout=24 * 3600,
        filter='payload.type.startsWith("payment.")',
        on_fail='payload.type == "payment.refused"',
        on_complete=f'payload.type == "payment.paid" && payload.amount >= {job.args.amount}',
    )
    provider.append((token.id, job.args.amount))
    return awa.WaitForCallback(token)


# the sender


def deliver(port: int, id: str, event: dict[str, object], first_wait: float = 0.05) -> int:
    """The status that ended it. What may succeed later is tried again, signed anew, after twice the time."""
    body = json.dumps({"payload": event}).encode()
    wait = first_wait
    status = 0
    for _ in range(8):
        headers = {
            "Content-Type": "application/json",
            "Awa-Signature": sign(SECRET, id, "resolve", body, int(time.time())),
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", f"/api/callbacks/{id}/resolve", body, headers)
            status = connection.getresponse().status
        except OSError:
            status = 0  # nobody is there (yet)
        finally:
            connection.close()
        if status not in {0, 408, 429, 500, 502, 503, 504}:
            break
        time.sleep(wait)
        wait *= 2
    return status


# the receiver


class Quiet(WSGIRequestHandler):
    """The standard library's handler, without a line for each request."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def state_of(id: int) -> str:
    job = client.get_job(id)
    return "gone" if job is None else job.state


with client:
    client.migrate()
    job = client.insert(PayOrder(order=1, amount=250))
    with client.worker({"default": 1}) as worker:
        worker.drained()
    ((id, amount),) = provider

    server = WSGIServer(("127.0.0.1", 0), Quiet, bind_and_activate=False)
    server.set_app(callbacks_app(client, SECRET))
    server.server_bind()
    port = server.server_port

    def start() -> None:
        server.server_activate()
        server.serve_forever()

    receiving = threading.Timer(0.2, start)  # late, as after a restart
    receiving.start()
    print("seen:", deliver(port, id, {"type": "order.seen"}), state_of(job.id))
    print("paid:", deliver(port, id, {"type": "payment.paid", "amount": amount}), state_of(job.id))
    print("paid, once more:", deliver(port, id, {"type": "payment.paid", "amount": amount}), state_of(job.id))
    server.shutdown()
    receiving.join()
    server.server_close()
