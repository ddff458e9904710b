"""One function a schedule: the tasks of every mesh, in order."""
