"""HAProxy as the data path of a front end: its configuration rendered, its process kept alive, its servers operated."""
