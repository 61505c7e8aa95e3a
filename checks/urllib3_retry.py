"""A stock client against a limit of 5 per 2 s: urllib3's Retry, which obeys Retry-After.

    pip install urllib3
    just stock-client

Sends 30 requests as fast as they are let through. Fails if a request is refused again after the client has waited as
long as it was told to, or if a wait was more than a second longer than the limit required.
"""

import subprocess
import sys
import time

import urllib3

REQUESTS, BURST, UNITS, PERIOD = 30, 5, 5, 2.0
HANDLING = 0.05  # what two requests take on a busy machine, in seconds; it is no waiting


def main():
    server = subprocess.Popen([sys.argv[1], "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()  # printed when it listens
        pool = urllib3.PoolManager()
        retry = urllib3.Retry(total=1, status_forcelist=[429], backoff_factor=0)
        level, last, refusals, longest = float(BURST), time.monotonic(), 0, 0.0
        for number in range(REQUESTS):
            start = time.monotonic()
            response = pool.request("GET", url, retries=retry)  # a second refusal raises
            end = time.monotonic()
            refused = len(response.retries.history)
            # A bucket of our own, which says how long the wait had to be.
            level = min(BURST, level + (start - last) * UNITS / PERIOD)
            needed = max(0.0, (1 - level) * PERIOD / UNITS)
            level, last = min(BURST, level + (end - start) * UNITS / PERIOD) - 1, end
            refusals += refused
            longest = max(longest, end - start - needed)
            assert response.status == 200, response.status
            assert end - start - needed <= 1.0 + HANDLING, f"request {number}: waited {end - start:.3f} s for {needed:.3f} s"
        assert refusals > 0, "nothing was refused, so nothing was shown"
        print(f"{REQUESTS} requests, {refusals} refusals, each waited out; at most {longest:.3f} s too long")
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
