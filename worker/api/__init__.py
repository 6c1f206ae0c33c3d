"""The credential platform's API, typed: operations are data, two thin senders run them.

`client` holds `AsyncApi` and `SyncApi`, `auth` the client credentials, `models` what is sent and answered,
`errors` what can go wrong. Nothing here knows of events, queues or handlers.
"""
