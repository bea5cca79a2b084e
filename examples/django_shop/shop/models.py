"""The tables of the shop."""

from django.db import models


class Item(models.Model):
    name = models.TextField(primary_key=True)
    stock = models.IntegerField()


class Order(models.Model):
    item = models.ForeignKey(Item, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField()
    job = models.UUIDField(null=True)
