"""Tests run the jobs themselves, in their transaction: no worker, and nothing is left."""

from django.test import TestCase

from chancy.django.testing import run_jobs
from shop.models import Item, Order


class OrderTest(TestCase):
    def test_an_order_is_confirmed(self) -> None:
        self.client.post("/orders", {"item": "tea", "quantity": 2})
        [done] = run_jobs()
        self.assertEqual(done.result, "sent: 2 × tea")
        order = Order.objects.get()
        answer = self.client.get(f"/orders/{order.pk}")
        self.assertEqual(answer.json()["result"], "sent: 2 × tea")
        self.assertEqual(Item.objects.get(pk="tea").stock, 98)

    def test_nothing_is_left_of_other_tests(self) -> None:
        self.assertEqual(run_jobs(), [])
