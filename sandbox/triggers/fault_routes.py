"""The faults over HTTP: `/sandbox/faults`."""

from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.tenant import Tenant

PATH = "/sandbox/faults"


def shown(tenant: Tenant) -> Faults:
    """Return every fault, on or off."""
    return Faults(**tenant.faults.on.model_dump())


def change(tenant: Tenant, changes: Faults) -> Faults:
    """Switch the faults that are named."""
    tenant.faults.change(changes)
    return shown(tenant)


def clear(tenant: Tenant) -> Faults:
    """Switch every fault off."""
    tenant.faults.clear()
    return shown(tenant)


OPERATIONS = (
    Operation("GET", PATH, shown, "Show the faults.", answer=Faults, needs_token=False),
    Operation("POST", PATH, change, "Switch the faults that are named.", answer=Faults, body=Faults, needs_token=False),
    Operation("DELETE", PATH, clear, "Switch every fault off.", answer=Faults, needs_token=False),
)
