"""The credential platform's API, typed. It knows credhook's events by name alone, and no queues and no handlers.

`client` has `AsyncApi` and `threads` its synchronous face; `calls` says what is asked and how answers are read,
`models` what is sent and answered, `oauth` has the access token, and `http` carries requests.
"""
