"""`python -m sandbox` does what `credhook sandbox` does."""

from sandbox.command import sandbox

if __name__ == "__main__":
    sandbox(prog_name="sandbox")
