"""The queue: a table of tickets, their ranked order, and the deadlines of ready ones."""
