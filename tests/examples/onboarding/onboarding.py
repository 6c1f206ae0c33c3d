"""Create a user on the platform for each completed issuance, linked to the tenant's identity provider."""

from credhook import AsyncContext, FetchedEvent, Handlers, InvalidRequest, Issuance, Retry, UserRequest

handlers = Handlers("onboarding")


@handlers.on("openid4vc.issuance.completed", give_up_on=InvalidRequest)
async def create_user(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    """Create the user under the issuance's id, which your own systems know from the offer.

    An issuance does not say who holds it. An existing user is not changed.
    """
    if event.details.is_("offered"):  # The details lag behind the event.
        raise Retry(after=30)
    request = UserRequest(username=event.resource_id, external_identifier=event.resource_id)
    user = await context.api.users.create(request)
    context.log.info("user_created", existed=user.existed)


@handlers.on("openid4vc.issuance.completed", after=create_user)
async def link_user(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    """Link the user to the tenant's identity provider. A second call changes nothing."""
    await context.api.users.link_identity(event.resource_id, enabled=True)
