"""HTTP within bounds: a request goes out, a response comes back whole, or it is said why not. Knows no platform."""
