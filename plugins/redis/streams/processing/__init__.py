"""What happens to the events of an owned partition."""
