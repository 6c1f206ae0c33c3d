from typing import Final

#: The user agent of `credhook doctor`, which posts no delivery: status does not report its refusal.
PROBE: Final = "credhook-doctor"
