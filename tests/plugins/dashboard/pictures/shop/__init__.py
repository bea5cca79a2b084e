"""A shop whose jobs are in the pictures. Imported as ``shop``, so that they look like yours."""
