"""httpx for plain HTTP, on a machine that may be busy.

Each call of httpx's own loads the authorities of TLS, which takes a fifteenth of a second, and fails after five.
"""

import ssl
from functools import partial

import httpx

#: It trusts nobody, and nobody asks it.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
#: Seconds.
PATIENT = 60.0

get = partial(httpx.get, verify=NO_TLS, timeout=PATIENT)
post = partial(httpx.post, verify=NO_TLS, timeout=PATIENT)
delete = partial(httpx.delete, verify=NO_TLS, timeout=PATIENT)
request = partial(httpx.request, verify=NO_TLS, timeout=PATIENT)
Client = partial(httpx.Client, verify=NO_TLS, timeout=PATIENT)
AsyncClient = partial(httpx.AsyncClient, verify=NO_TLS, timeout=PATIENT)
