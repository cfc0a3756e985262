"""The relay: a small process beside the proxy for what a proxy cannot do.

It withholds an answer until its first byte, and until then asks another replica when one fails; it ends a broken stream
with an error event; it holds requests while a service starts from nothing; it finds a model's service by the body; it
sends a slow GET to a second replica. All other services bypass it.
"""
