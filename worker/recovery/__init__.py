"""Events that are at home nowhere: found, judged, and put back."""
