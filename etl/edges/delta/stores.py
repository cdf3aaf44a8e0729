"""The store that a table lies in, as delta-rs is told of it. Secrets are resolved here, for the
call that needs them, and kept nowhere.
"""

from __future__ import annotations

from etl.decide.table_storage import told_delta_rs
from etl.model.security import SecretRef
from etl.settings.secrets import resolve_secret
from etl.settings.table import KEY_OF, store_of


def options_of(path: str) -> dict[str, str] | None:
    """Storage options for a path; None where nothing is told, and delta-rs goes by its own chain.

    Raises SettingsError where a secret is not to be found on this machine.
    """
    told = told_delta_rs(path, store_of(path))
    return {
        key: resolve_secret(value, KEY_OF[key]) if isinstance(value, SecretRef) else value
        for key, value in told.items()
    } or None
