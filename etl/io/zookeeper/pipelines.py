"""Which pipelines does a group have, what do they read, and which are retired?

A topic is read by one pipeline of a group. Two pipelines that add topics at the same time write the
znode of the group's pipelines, and ZooKeeper rejects one of the two transactions.

Lives here: names and topics of the group's pipelines, the version that plans check, retirement.
Not here: the plans of one pipeline (ledger.py); which topics exclude each other
(etl/decide/reconcile.py).
"""

from __future__ import annotations

from etl.errors import Owned
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.documents import parse, render
from etl.ledger.znode_paths import CONSUMERS, GroupPaths, PipelinePaths
from etl.model.snapshot import Retirement


class GroupPipelines:
    """The pipelines of one group. Raises what `PlanLedger` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._path = GroupPaths(group).pipelines

    def names(self) -> list[str]:
        """Return the names of all pipelines of the group."""
        return sorted(self._zookeeper.children(self._path) or ())

    def ledger_of(self, name: str) -> PlanLedger:
        """Return the ledger of this pipeline."""
        return PlanLedger(self._zookeeper, self._group, name)

    def topics_of_others(self, name: str) -> dict[str, frozenset[str]]:
        """Return the topics of each pipeline but this one that has a plan and is in service.

        Topics: those of the pipeline's newest plan.
        """
        found = {}
        for other in self.names():
            if other == name:
                continue
            ledger = self.ledger_of(other)
            if ledger.read_retirement():
                continue
            topics = ledger.topics()
            if topics:
                found[other] = topics
        return found

    def version(self) -> int | None:
        """Return a version that changes when a pipeline adds a topic; None: no pipelines yet.

        Read before `topics_of_others`, it makes `PlanLedger.store_plan` fail if a pipeline added a
        topic since.
        """
        found = self._zookeeper.read(self._path)
        return found[1] if found else None

    def retire(
        self, name: str, retirement: Retirement, *, before: Retirement | None = None
    ) -> None:
        """Take a pipeline out of service; nothing is deleted.

        `before`: the retirement to replace. Raises Owned if there is another one.
        """
        payload = render(retirement)
        path = PipelinePaths(self._group, name).retired
        if before is None:
            is_stored = self._zookeeper.create(path, payload)
        else:
            found = self._zookeeper.read(path)
            is_stored = (
                found is not None
                and parse(Retirement, found[0], path=path) == before
                and self._zookeeper.replace(path, payload, version=found[1])
            )
        if not is_stored:
            raise Owned(
                "Another operator retired this pipeline at the same time",
                znode=path,
                action="Check the pipeline with `etl pipelines list`",
            )

    def resume(self, name: str, *, version: int) -> None:
        """End a pipeline's retirement, and take its topics again; `version` as read before the
        topics of the others.

        Raises Owned if another pipeline of the group took a topic meanwhile.
        """
        path = PipelinePaths(self._group, name).retired
        request = self._zookeeper.client.transaction()
        request.set_data(self._path, b"", version=version)
        request.delete(path)
        if not self._zookeeper.transact(request, path):
            raise Owned(
                "Another pipeline of this group took a topic at the same time",
                znode=path,
                action="Check the pipelines with `etl pipelines list`",
            )


def pipelines_beside(ledger: PlanLedger) -> GroupPipelines:
    """Return the pipelines of this pipeline's group."""
    return GroupPipelines(ledger.zookeeper, ledger.paths.group)


def groups_with_pipelines(zookeeper: ZooKeeper) -> list[str]:
    """Return the names of all groups in this ZooKeeper that have a pipeline."""
    found = []
    for group in zookeeper.children(CONSUMERS) or ():
        if zookeeper.children(GroupPaths(group).pipelines):
            found.append(group)
    return sorted(found)
