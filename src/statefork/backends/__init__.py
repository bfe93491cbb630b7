"""One module for each mechanism. They do not import each other; the factory imports the one that is asked for."""
