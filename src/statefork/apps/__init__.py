"""Sample programs that live inside an environment. They need nothing but Python's standard library."""
