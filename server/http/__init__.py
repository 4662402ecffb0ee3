"""HTTP/1.1 on Twisted: connections, requests and answers. Knows nothing of files or queues."""
