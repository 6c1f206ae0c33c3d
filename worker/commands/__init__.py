"""What people type: worker, handlers, events, endpoints, api."""
