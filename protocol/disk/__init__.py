"""What server and client both do on a file system: durable writes, and looking at a tree."""
