"""Events as bytes and back."""
