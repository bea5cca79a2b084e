"""Money."""

from __future__ import annotations

import asyncio

from chancy import job


class CardDeclined(Exception):
    """The bank has refused a card."""


class LedgerMismatch(Exception):
    """Two books that differ."""


@job(queue="billing", max_attempts=3)
async def charge(
    order: int, customer: str = "", amount: str = "0.00", card_number: str = ""
) -> str:
    if order % 5 == 0:
        raise CardDeclined(f"the card of order {order} was declined by 'bank-{order % 7}'")
    return f"charged {amount} to {customer}"


@job(queue="billing", max_attempts=1)
async def close_books(day: str, ledger: str = "main") -> None:
    await asyncio.sleep(0.05)
    raise LedgerMismatch(
        f"the ledger {ledger!r} does not add up on {day}\n"
        "  expected 48,112.40 EUR in 1,204 entries\n"
        "  found    48,101.15 EUR in 1,203 entries\n"
        "  first difference: entry 77812, refund of order 5121"
    )


@job(queue="billing", max_attempts=1)
async def reconcile_supplier_invoices_with_purchase_orders_and_deliveries(supplier: str) -> None:
    raise TimeoutError(f"no answer from the supplier's portal within 30 s: {supplier}")
