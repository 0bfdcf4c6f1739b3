"""`fanfold view`: the web app over ledgers."""
