"""httpx for plain HTTP: each call of its own loads the authorities of TLS, which takes a fifteenth of a second."""

import ssl
from functools import partial

import httpx

#: It trusts nobody, and nobody asks it.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

get = partial(httpx.get, verify=NO_TLS)
post = partial(httpx.post, verify=NO_TLS)
delete = partial(httpx.delete, verify=NO_TLS)
request = partial(httpx.request, verify=NO_TLS)
Client = partial(httpx.Client, verify=NO_TLS)
AsyncClient = partial(httpx.AsyncClient, verify=NO_TLS)
