"""Where tokens of OAUTHBEARER come from: a function of the user's, AWS for this machine's role, or
a file or variable that others keep.

Asked anew with each connection: whoever gives them keeps them as long as they hold.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from etl.edges.brokers.token_function import called_until
from etl.errors import SettingsError
from etl.model.security import SecretRef, names_token_source
from etl.settings.secrets import resolve_secret

KEY = "source.security.sasl.token"
_MSK = "aws-msk"


class TokenSource:
    """One token, for one connection. `given` holds it once it was asked for. `deadline`: a
    `time.monotonic` moment.
    """

    def __init__(self, said: str | SecretRef | None, address: str, deadline: float) -> None:
        self._said, self._address, self._deadline = said or "", address, deadline
        self.given: list[str] = []

    def provider(self) -> Any:
        """As kafka-python asks. Asking raises SettingsError where there is nothing to ask,
        BrokerUnreachable where that fails.
        """
        from kafka.net.sasl.oauth import AbstractTokenProvider

        token, extensions = self._asked()
        self.given.append(token)

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return token

            def extensions(self) -> Mapping[str, str]:
                return extensions

        return Provider()

    def _asked(self) -> tuple[str, Mapping[str, str]]:
        if isinstance(self._said, SecretRef):
            return self._checked(resolve_secret(self._said, KEY))
        if not names_token_source(self._said):
            raise self._wrong(
                "what stands there names no source of tokens",
                f"{KEY}: module:function, aws-msk:REGION or a reference",
            )
        module, _, name = self._said.partition(":")
        if module == _MSK:
            return self._checked(self._called(lambda: _msk_token(name))[0])
        return self._checked(self._called(self._called(lambda: self._function(module, name))))

    def _function(self, module: str, name: str) -> Callable[[], Any]:
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            missing = (
                f"module {error.name}"
                if isinstance(error, ModuleNotFoundError)
                else f"{self._said}"
            )
            check = f"{KEY}, and that the module is there on every machine that connects to brokers (spark.submit.pyFiles)"
            raise self._wrong(f"there is no {missing}", check) from None
        if not callable(found):
            raise self._wrong(f"{self._said} is no function", KEY)
        return found  # type: ignore[no-any-return]

    def _called(self, function: Callable[[], Any]) -> Any:
        return called_until(
            function, self._deadline, name=str(self._said), key=KEY, address=self._address
        )

    def _checked(self, found: Any) -> tuple[str, Mapping[str, str]]:
        token, extensions = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        texts = (
            [token, *extensions, *extensions.values()]
            if isinstance(extensions, Mapping)
            else [None]
        )
        if not token or not all(
            isinstance(text, str) and text.isascii() and text.isprintable() for text in texts
        ):
            raise self._wrong(
                f"{self._said} gave no token: it must give a text, or that and a mapping of extensions",
                KEY,
            )
        return token, extensions

    def _wrong(self, what: str, check: str) -> SettingsError:
        return SettingsError(
            what, key=KEY, broker=self._address, host=os.uname().nodename, check=check
        )


def _msk_token(region: str) -> tuple[str, int]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        check = "pip install 'offset-range-etl[aws-msk]' on every machine that connects to brokers"
        raise SettingsError(
            f"{_MSK} takes a library that is not installed",
            key=KEY,
            host=os.uname().nodename,
            check=check,
        ) from None
    found: tuple[str, int] = MSKAuthTokenProvider.generate_auth_token(region)
    return found
