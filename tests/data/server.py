"""A publisher's server on this machine, well behaved or not."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    """What the server has, how it behaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    versions: bool = True
    """Whether it sends an ETag."""
    heed_if_range: bool = True
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the next answers break off."""
    answers: list[int] = field(default_factory=list)
    """Status codes of the next answers, 0 for the usual one."""
    lengths: bool = True
    redirect: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of every request."""

    def url(self, name):
        return f"{self.address}/{name}"


def _handler(publisher):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            publisher.asked.append((self.path, wanted))
            code = publisher.answers.pop(0) if publisher.answers else 0
            data = publisher.files.get(self.path.lstrip("/"))
            if publisher.redirect:
                self.send_response(302)
                self.send_header("Location", publisher.redirect)
                self.end_headers()
                return
            if code or data is None:
                self.send_error(code or 404)
                return
            tag = f'"{hash(data)}"'
            start = 0
            same = not publisher.heed_if_range or self.headers.get("If-Range") == tag
            if wanted and publisher.ranges and same:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            if publisher.versions:
                self.send_header("ETag", tag)
            if publisher.lengths:
                self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            end = publisher.cuts.pop(0) if publisher.cuts else len(data)
            self.wfile.write(data[start:end])

        def log_message(self, *arguments):
            pass

    return Handler


@contextmanager
def serving():
    publisher = Publisher()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(publisher))
    publisher.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield publisher
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
