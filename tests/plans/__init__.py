"""The plans of the hot statements, as the server makes them."""
