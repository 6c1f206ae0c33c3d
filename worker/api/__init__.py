"""The credential platform's API, typed: operations are data, two thin senders run them.

`client` holds `AsyncApi` and `SyncApi`, `auth` the client credentials, `models` what is sent and answered,
`errors` what can go wrong. Of credhook's events it knows their names alone, and of queues
and handlers nothing.
"""
