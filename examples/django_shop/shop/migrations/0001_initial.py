"""The tables of the shop, with something to sell."""

from django.db import migrations, models


def fill(apps, schema_editor):
    apps.get_model("shop", "Item").objects.create(name="tea", stock=100)


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Item",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("stock", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("item", models.ForeignKey(to="shop.item", on_delete=models.PROTECT)),
                ("quantity", models.PositiveIntegerField()),
                ("job", models.UUIDField(null=True)),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
