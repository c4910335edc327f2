"""A gRPC client that finds its backends by xDS and prints which one answers.

    GRPC_XDS_BOOTSTRAP=… python3 client.py xds:///api /service/method

It calls the method repeatedly with empty requests. It prints an answer, which
must be one line of text, when it differs from the previous one. For a failed
call it prints "error: …". It closes its channel and exits when its standard
input ends.
"""

import sys
import threading

import grpc

PAUSE = 0.005  # seconds between two calls
PATIENCE = 20  # timeout of one call in seconds


def main(target, method):
    ended = threading.Event()

    def await_end():
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    last = ""
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(method)  # bytes in, bytes out
        while not ended.is_set():
            try:
                line = call(b"", timeout=PATIENCE, wait_for_ready=True).decode()
            except grpc.RpcError as err:
                line = f"error: {err.code().name}: {err.details()}"
            if line != last and not ended.is_set():
                print(line, flush=True)
                last = line
            ended.wait(PAUSE)


main(*sys.argv[1:])
