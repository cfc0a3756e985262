"""What a pool of several machines knows of them: who they are, how they are let in, and whose word counts."""
