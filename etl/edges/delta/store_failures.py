"""What a store's answer means, by the code in it. Its text is never repeated: it quotes the request
that was signed, and who signed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etl.errors import EtlError, PermissionRefused, SettingsError, TableUnreachable
from etl.settings.choices import is_url

_REFUSED = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "XAdminUserNotFound",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "InvalidSecurity",
    "AccountProblem",
    "AllAccessDisabled",  # S3
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "InvalidAuthenticationInfo",  # Azure
    "AccessControlException",
)  # Hadoop
_LOGIN = "the credentials and their rights on this path: table.store, or what the environment gives where that says nothing"
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "NoSuchBucket": ("the store has no such bucket", "table.path"),
    "InvalidBucketName": ("no bucket can have such a name", "table.path"),
    "ContainerNotFound": ("the storage account has no such container", "table.path"),
    "InvalidResourceName": ("no container can have such a name", "table.path"),
    "AuthorizationHeaderMalformed": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "PermanentRedirect": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "IllegalLocationConstraintException": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "URL scheme is not allowed": (
        "the endpoint is http://, and nobody allowed that",
        "table.store.endpoint",
    ),
    "InvalidContentType": ("the endpoint does not speak TLS", "table.store.endpoint"),
    "UnknownIssuer": (
        "nobody whom this machine trusts signed the endpoint's certificate",
        "table.store.endpoint",
    ),
    "NotValidForName": ("the endpoint's certificate is another host's", "table.store.endpoint"),
    "Invalid Access Key": (
        "the account's key is no key of Azure's, which is base64",
        "table.store.account_key",
    ),
}
"""What is in an answer, or in what a client says -> a sentence, and the key to look at."""
_CODE = re.compile(
    r"<Code>([A-Za-z]{1,60})</Code>|\b(\d{3}) [A-Z][A-Za-z ]{2,30}\b|Error Code: ([A-Za-z]{1,60})|Status Code: (\d{3})"
)
_BY_SPARK = re.compile(
    r"software\.amazon\.awssdk|java\.nio\.file\.AccessDeniedException|hadoop\.fs\.s3a|AbfsRestOperationException|hadoop\.fs\.azurebfs"
    r"|UnknownHostException|java\.net\.\w*ConnectException|NoRouteToHostException|SocketTimeoutException|AccessControlException"
    r"|hadoop\.ipc\."
)
_OBSTACLES = (
    "Connection refused",
    "Name or service not known",
    "Temporary failure in name resolution",
    "No route to host",
    "timed out",
    "Connection reset",
    "connection closed",
    "network is unreachable",
    "failed to lookup address information",
)


def of_store(error: BaseException, path: str, what: str) -> EtlError:
    """The failure for a table in a store that cannot be `read` or `written`: PermissionRefused,
    SettingsError or TableUnreachable.
    """
    text = str(error)
    found = next((one for one in _SETTINGS if one in text), None)
    if found is not None:
        sentence, key = _SETTINGS[found]
        return SettingsError(sentence, path=str(path), key=key, check=key)
    said = _CODE.search(text)
    code = next((one for one in said.groups() if one), None) if said else None
    if "169.254.169.254" in text:
        return PermissionRefused(
            "no credentials for the store were found", path=str(path), check=_LOGIN
        )
    if (
        any(one in text for one in _REFUSED)
        or code in ("401", "403")
        or "lacked the necessary privileges" in text
    ):
        return PermissionRefused(f"the store refuses us{_told(code)}", path=str(path), check=_LOGIN)
    if "SafeModeException" in text:
        what = f"the table cannot be {what}: HDFS is in safe mode, in which nobody writes"
        return TableUnreachable(
            what,
            path=str(path),
            check="hdfs dfsadmin -safemode get; a name node leaves it once it knows its blocks",
        )
    obstacle = next((one for one in _OBSTACLES if one.lower() in text.lower()), None)
    check = "the store's address and region, the network, and the credentials"
    return TableUnreachable(
        f"the table cannot be {what}{_told(obstacle or code)}", path=str(path), check=check
    )


def is_of_store(text: str) -> bool:
    """Whether a Java stack trace speaks of what a store, or the way to it, said, and not of a bug."""
    return _BY_SPARK.search(text) is not None


def behind(error: BaseException | None, path: str) -> BaseException | None:
    """What may stand in a traceback as the cause of a failure at that path: nothing that a store
    said.
    """
    return None if is_url(path) else error


def _told(code: str | None) -> str:
    return f": {code}" if code else ""
