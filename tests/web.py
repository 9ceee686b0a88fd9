"""nginx as the tests run it, and what wrk says of it."""

import os
import re

from procs import free_port

CONF = """
worker_processes 2;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log notice;
{user}
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    keepalive_requests 1000000;
    upstream behind {{ server 127.0.0.1:{behind}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location = /hello {{ return 200 "hello from nginx\\n"; }}
        location / {{ root {dir}/www; }}
        location /behind {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://behind; }}
    }}
}}
"""


class Nginx:
    """Two workers in front of the world's directory "www"; `start`: as what they run, the server if nothing else is said. `behind`: the
    port of the server to which /behind goes."""

    def __init__(self, accel, world, start=None, behind=1):
        self.port, self.log = free_port(), world.directory / "error.log"
        conf = world.directory / "nginx.conf"
        user = "user root;" if os.getuid() == 0 else ""
        conf.write_text(CONF.format(dir=world.directory, port=self.port, user=user, behind=behind))
        self.argv = ["nginx", "-c", conf, "-p", world.directory]
        (start or accel.server)("nginx", self.argv).wait_listening(self.port)

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}"

    def check(self):
        """A worker that dies is replaced by the master: only the log knows."""
        assert "exited on signal" not in self.log.read_text(), self.log.read_text()


def requests_of(report):
    """(requests, bad answers) of a wrk report."""
    requests = int(re.search(r"(\d+) requests in", report).group(1))
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", report)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    return requests, sum(map(int, errors.groups())) if errors else 0, int(bad.group(1)) if bad else 0
