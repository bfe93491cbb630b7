"""A ledger over HTTP: accounts, and transfers between them. The money is in SQLite, the statistics in memory."""

import os
import sqlite3

from flask import Flask, Response, jsonify, request

app = Flask(__name__)
served = {"transfers": 0}


def from_text(amount: str) -> float:
    return float(amount)


def as_text(amount: float) -> str:
    return str(amount)


def database() -> sqlite3.Connection:
    return sqlite3.connect(os.environ["LEDGER_DB"])


@app.get("/accounts/<name>")
def account(name: str) -> Response:
    with database() as db:
        (balance,) = db.execute("SELECT balance FROM accounts WHERE name = ?", (name,)).fetchone()
    return jsonify(name=name, balance=as_text(balance))


@app.post("/transfers")
def transfer() -> Response:
    order = request.get_json()
    amount = from_text(order["amount"])
    with database() as db:
        db.execute("UPDATE accounts SET balance = balance - ? WHERE name = ?", (amount, order["from"]))
        db.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", (amount, order["to"]))
    served["transfers"] += 1
    return jsonify(order)


@app.get("/statistics")
def statistics() -> Response:
    return jsonify(pid=os.getpid(), **served)
