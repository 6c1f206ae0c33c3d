"""A user on the platform for each issuance that completes, who signs in through the tenant's identity provider."""

from credhook import AsyncContext, FetchedEvent, Handlers, InvalidRequest, Issuance, Retry, UserRequest

handlers = Handlers("onboarding")


@handlers.on("openid4vc.issuance.completed", give_up_on=InvalidRequest)
async def create_user(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    """Create the user; one who exists stays as they are.

    An issuance does not say who holds it. The user is called by its id, which your own systems know from the offer.
    """
    if event.details.is_("offered"):  # The details lag behind the event.
        raise Retry(after=30)
    request = UserRequest(username=event.resource_id, external_identifier=event.resource_id)
    user = await context.api.users.create(request)  # Its temporary password is left alone: nobody will need one.
    context.log.info("user_created", existed=user.existed)


@handlers.on("openid4vc.issuance.completed", after=create_user)
async def link_user(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    """Let the user in through the tenant's identity provider; doing so again changes nothing."""
    await context.api.users.link_identity(event.resource_id, enabled=True)
