"""Version 1 of the API's data transfer objects."""
