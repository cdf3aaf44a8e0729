"""`etl pipelines set-acl`: what a pipeline keeps gets the ACL that the conf asks for, for a conf
counts only for what is made under it.
"""

from __future__ import annotations

from etl.commands.operator import Ruling
from etl.commands.run import new_run_id
from etl.errors import Owned, SettingsError
from etl.io.zookeeper.connection import describe_identity
from etl.io.zookeeper.permissions import kept_by, set_as_asked
from etl.ledger.paths import PipelinePaths
from etl.model.security import Acl
from etl.run.services import ALONE
from etl.run.shell import open_world
from etl.settings.sections import Settings


def set_acl(settings: Settings) -> Ruling:
    """Have the znodes of the pipeline and of its backfills changed by those alone whom
    `zookeeper.acl` names.

    Raises SettingsError where there is no such pipeline, Owned while a run is at work, of the
    pipeline or of a backfill, PermissionRefused where this login may not: it takes the one that may
    change them now.
    """
    access = settings.zookeeper.access
    with open_world(settings, ALONE) as world:
        if not kept_by(world.zookeeper, settings.group, settings.pipeline):
            what = f"the group has no pipeline {settings.pipeline}: what its first run makes, it makes as zookeeper.acl says"
            raise SettingsError(what, check="`etl pipelines list CONF`")
        with world.driving(new_run_id()):
            kept, own = (
                kept_by(world.zookeeper, settings.group, settings.pipeline),
                PipelinePaths(settings.group, settings.pipeline).driver,
            )
            if at_work := next(
                (path for path in kept if path.endswith("/driver") and path != own), None
            ):
                raise Owned(
                    "a backfill of the pipeline is at work",
                    znode=at_work,
                    check="the same again once it has ended",
                )
            changed = set_as_asked(world.zookeeper, kept)
    who = "everybody" if access.acl is Acl.OPEN else f"{describe_identity(access)}, alone"
    says = f"the {changed:,} znodes of pipeline {settings.pipeline} can be changed by {who}, and read by everybody"
    return Ruling(
        says,
        {"says": says, "pipeline": settings.pipeline, "acl": access.acl.value, "znodes": changed},
    )
