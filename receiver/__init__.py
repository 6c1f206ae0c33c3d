from typing import Final

#: The user agent of `credhook doctor`. The receiver refuses its request, and status does not report that refusal.
DOCTOR_AGENT: Final = "credhook-doctor"
