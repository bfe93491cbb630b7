"""What the ledger promises, checked on the running server."""

import json
import re
import unittest
import urllib.request
from decimal import Decimal

SERVER = "http://127.0.0.1:8000"


def balance(name: str) -> str:
    with urllib.request.urlopen(f"{SERVER}/accounts/{name}") as answer:
        return json.load(answer)["balance"]


def transfer(giver: str, taker: str, amount: str) -> None:
    order = json.dumps({"from": giver, "to": taker, "amount": amount}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{SERVER}/transfers", order, headers)).close()


class LedgerTest(unittest.TestCase):
    def test_a_balance_has_two_decimals(self) -> None:
        assert re.fullmatch(r"-?\d+\.\d\d", balance("carol"))

    def test_carol_still_has_her_savings(self) -> None:
        assert Decimal(balance("carol")) == Decimal("1234.56")

    def test_three_dimes_are_thirty_cents(self) -> None:
        before = Decimal(balance("bob"))
        for _ in range(3):
            transfer("alice", "bob", "0.10")
        assert Decimal(balance("bob")) - before == Decimal("0.30")


if __name__ == "__main__":
    unittest.main()
