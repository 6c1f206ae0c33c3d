"""The handler of the README, run as the README says."""

import re
from pathlib import Path

import plain
from harness import DATA, Harness

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_handler_in_the_readme_opens_an_account(harness: Harness) -> None:
    (code,) = re.findall(r"^```python\n(# accounts\.py\n.*?)^```", README, re.DOTALL | re.MULTILINE)
    (harness.folder / "accounts.py").write_text(code)
    presentation = harness.happens("m1", DATA)
    with harness.worker(CREDHOOK_HANDLERS="accounts") as worker:
        assert harness.reaches("m1", "done")["h:accounts.open_account"].startswith("done ")
        assert '"account_opened"' in worker.text
    token = plain.post(
        harness.environment["CREDHOOK_TOKEN_URL"],
        data={"grant_type": "client_credentials", "client_id": "sandbox", "client_secret": "sandbox"},
    ).json()["access_token"]
    users = plain.get(
        f"{harness.sandbox.url}/consumer-onboarding/api/users", headers={"authorization": f"Bearer {token}"}
    ).json()["data"]
    assert [user["firstName"] for user in users if user["username"] == presentation] == ["Ada"]
