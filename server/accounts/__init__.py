"""Who may administer: people, API tokens, their passwords and logins; knows no page."""
