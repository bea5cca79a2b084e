"""The requests of the shop."""

from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop.models import Item, Order
from shop.tasks import confirm


@csrf_exempt
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    item, quantity = request.POST["item"], int(request.POST.get("quantity", 1))
    with transaction.atomic():
        made = Order.objects.create(item_id=item, quantity=quantity)
        Order.objects.filter(pk=made.pk).update(job=confirm.enqueue(order=made.pk).id)
        Item.objects.filter(pk=item).update(stock=F("stock") - quantity)
    return JsonResponse({"id": made.pk}, status=201)


@require_GET
def show(request: HttpRequest, pk: int) -> JsonResponse:
    found = get_object_or_404(Order, pk=pk)
    result = confirm.get_result(str(found.job))
    return JsonResponse(
        {
            "item": found.item_id,
            "state": result.status.lower(),
            "result": result.return_value if result.status == "SUCCESSFUL" else None,
        }
    )
