"""How a client proves to a token endpoint who it is."""

from typing import Literal

#: Where the client's secret goes: `client_secret_post`, which the platform's specification says, into the form;
#: `client_secret_basic`, which every server of RFC 6749 has to understand, into a header.
Method = Literal["post", "basic"]
