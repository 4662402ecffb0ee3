"""Where the bytes of a download are kept until it is whole."""
