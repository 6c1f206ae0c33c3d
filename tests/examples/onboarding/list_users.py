"""Print the tenant's users. A script of your own needs no worker."""

from credhook import Api

with Api.from_env() as api:
    for user in api.users.list():
        print(user.id, user.username)
