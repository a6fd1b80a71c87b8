"""Errors that users see, with the exit code that goes with each."""


class InputError(ValueError):
    """Something is wrong before the run starts: the message says what, where and what to do.  Exit code 2."""

    exit_code = 2

    def __init__(self, *messages):
        super().__init__("\n".join(str(message) for message in messages))


class RunError(RuntimeError):
    """The run failed on its way; what it had is saved.  Exit code 1."""

    exit_code = 1

    @classmethod
    def everywhere_raised(cls, message):
        """An error that all ranks raise at the same place, so that none has to be stopped by force."""
        error = cls(message)
        error.everywhere = True
        return error
