"""`python -m credhook.sandbox` is `credhook sandbox`."""

from credhook.sandbox.command import sandbox

if __name__ == "__main__":
    sandbox(prog_name="sandbox")
