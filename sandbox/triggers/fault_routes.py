"""The faults over HTTP: `/sandbox/faults`."""

from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.tenant import Tenant

PATH = "/sandbox/faults"


def shown(tenant: Tenant) -> Faults:
    """Return every fault, on or off."""
    return Faults(**tenant.faults.on.model_dump())


def change(tenant: Tenant, wanted: Faults) -> Faults:
    """Switch the faults that are named."""
    tenant.faults.change(wanted)
    return shown(tenant)


def clear(tenant: Tenant) -> Faults:
    """Switch every fault off."""
    tenant.faults.clear()
    return shown(tenant)


OPERATIONS = (
    Operation("GET", PATH, shown, "Show the faults."),
    Operation("POST", PATH, change, "Switch the faults that are named."),
    Operation("DELETE", PATH, clear, "Switch every fault off."),
)
