"""A shop whose state is in three places: prices in a database, the discount in a file, carts in memory.

It shows why rolling back the database alone is not enough. ``shop.py DIRECTORY PORT``; all requests are GET:
``/price/ITEM/CENTS`` changes a price, ``/discount/PERCENT`` the discount, ``/add/ITEM`` fills the cart, ``/total`` says what it costs.
"""

import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")
prices_cached: dict[str, int] = {}
cart: list[str] = []


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "shop.db")
    connection.execute("create table if not exists price (item text primary key, cents integer)")
    return connection


def price(item: str) -> int:
    if item not in prices_cached:
        with database() as connection:
            row = connection.execute("select cents from price where item = ?", (item,)).fetchone()
        prices_cached[item] = row[0] if row else 0
    return prices_cached[item]


def discount() -> int:
    path = directory / "config.json"
    return int(json.loads(path.read_text())["discount"]) if path.exists() else 0


def total_cents() -> int:
    return sum(price(item) for item in cart) * (100 - discount()) // 100


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        words = self.path.strip("/").split("/")
        if words[0] == "price":
            with database() as connection:
                connection.execute("insert or replace into price values (?, ?)", (words[1], int(words[2])))
            prices_cached.pop(words[1], None)
        elif words[0] == "discount":
            (directory / "config.json").write_text(json.dumps({"discount": int(words[1])}))
        elif words[0] == "add":
            cart.append(words[1])
        body = f"${total_cents() / 100:.2f}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    server = HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    (directory / "up").touch()
    server.serve_forever()


if __name__ == "__main__":
    main()
