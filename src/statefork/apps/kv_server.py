"""A key-value store over HTTP that keeps everything in memory: ``/set/KEY/VALUE``, ``/get/KEY``, ``/all``, ``/``."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

store = {f"key{number}": f"value{number}" for number in range(1, 6)}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        words = [unquote(word) for word in self.path.strip("/").split("/")]
        if words[0] == "set" and len(words) == 3:
            store[words[1]] = words[2]
            self.answer(200, {"key": words[1], "value": words[2]})
        elif words[0] == "get" and len(words) == 2:
            found = words[1] in store
            self.answer(200 if found else 404, {"key": words[1], "value": store.get(words[1])})
        elif words == ["all"]:
            self.answer(200, store)
        elif words == [""]:
            self.answer(200, {"keys": len(store)})
        else:
            self.answer(404, {"error": f"no such path: {self.path}"})

    def answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if len(sys.argv) > 2:
        open(sys.argv[2], "w").close()  # says that it listens
    server.serve_forever()


if __name__ == "__main__":
    main()
