"""Fetches a URL several times with urllib, as fresh connections; prints each body's length and hash.

usage: fetch.py URL TIMES
"""

import hashlib
import sys
import urllib.request

for _ in range(int(sys.argv[2])):
    with urllib.request.urlopen(sys.argv[1], timeout=20) as response:
        body = response.read()
    print(response.status, len(body), hashlib.sha256(body).hexdigest())
