"""What the hub's refusals mean, and what to do about each."""

from http.client import HTTPMessage

from dielet.errors import DieletError, MissingFile


def refusal(
    status: int,
    headers: HTTPMessage,
    *,
    hub_id: str,
    page: str,
    revision: str,
    name: str,
    with_token: bool,
) -> DieletError:
    """The error for an answer that is not the one asked for.

    page: where people see the model.  name: the file asked for, or empty for the listing.
    The hub answers 401 for what is private, gated or missing alike to whoever shows no token.
    """
    code, said = headers.get("X-Error-Code") or "", _plain(headers.get("X-Error-Message") or "")
    if code == "GatedRepo":
        return MissingFile(f"{hub_id} is gated: {_gate(page, with_token)}")
    if "credentials" in said.lower() or "user token" in said.lower():
        return MissingFile(
            f"{hub_id}: the hub does not accept the token ({said}); make a new one at "
            f"{_site(page)}/settings/tokens and set HF_TOKEN, or unset it"
        )
    if code == "RevisionNotFound":
        return MissingFile(
            f"{hub_id} has no revision {revision!r}; its branches and tags are listed at "
            f"{page}/tree/main"
        )
    if code == "EntryNotFound" or (status == 404 and name):
        return MissingFile(f"{hub_id} lists {name} and does not have it; try again later")
    if code == "RepoNotFound" or status in (401, 404):
        remedy = (
            "check the name, and that the token may read it"
            if with_token
            else "check the name, or, for one that is private, set HF_TOKEN to a token that may "
            "read it"
        )
        return MissingFile(f"the hub has no model {hub_id}, or it is private; {remedy}")
    if status == 403:
        return MissingFile(
            f"the hub does not give {hub_id} away ({said or 'forbidden'}); see {page}"
        )
    reason = f"{status} {said}".strip()
    return MissingFile(f"{hub_id}: the hub answers {reason}; see {page}")


def _gate(page: str, with_token: bool) -> str:
    if with_token:
        return (
            f"the account of the token given has no access; ask for it at {page}, and see that "
            "the token may read gated repositories"
        )
    return (
        f"accept its terms at {page}, then set HF_TOKEN to a token of that account "
        "(`hf auth login` keeps one)"
    )


def _site(page: str) -> str:
    return page.rsplit("/", 2)[0]


def _plain(text: str) -> str:
    """What the hub said, as one line of a sane length."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
