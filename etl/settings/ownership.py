"""How a run behaves towards other consumers of the group and other drivers of the pipeline; under
`mode: join`, as what it is a member.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from etl.model.partitions import BrokerFamily, GroupProtocol, Membership, OffsetsStorage
from etl.settings.policies import (
    GroupStrategy,
    HandOverAt,
    OnLiveGroup,
    OnOwned,
    OwnershipMode,
    Stay,
)
from etl.settings.section import DAY_S, NAME, Section, one_or_several
from etl.settings.source import SourceSettings

_OF_ZOOKEEPER = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.ROUND_ROBIN_0_10,
    GroupStrategy.ROUND_ROBIN_1_0,
)
_OF_COORDINATOR = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.STICKY,
    GroupStrategy.COOPERATIVE_STICKY,
)
_NOT_OF_ZOOKEEPER = ("protocol", "session_timeout_s", "rebalance_timeout_s")
_NOT_OF_COORDINATOR = ("threads", "backoff_s")


class OwnershipSettings(Section):
    """The keys. Those from `membership` on are of `mode: join`."""

    mode: OwnershipMode = OwnershipMode.CLAIM
    on_owned: OnOwned = OnOwned.FAIL
    on_live_group: OnLiveGroup = OnLiveGroup.FAIL
    """`unowned` takes what none of them owns."""
    wait_for_driver_s: float = Field(default=60, ge=0, le=DAY_S)
    """For another driver of this pipeline, and under `on_owned: wait` for the owners of what is
    read.
    """
    membership: Membership | None = None
    """Which of the two groups of this name; None: ZooKeeper's where the brokers are found there,
    else the coordinator's.
    """
    hand_over: HandOverAt = HandOverAt.PLAN
    """`after_append` is for groups whose members are all ours: what another one reads meanwhile is
    read by both.
    """
    strategy: Annotated[tuple[GroupStrategy, ...], BeforeValidator(one_or_several)] = Field(
        default=(GroupStrategy.RANGE,), min_length=1
    )
    """How the group's consumers divide what they read; of a coordinator's the one that all have in
    common, the first one preferred.
    """
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    """By which requests a coordinator is spoken to."""
    threads: int = Field(default=1, ge=1, le=10_000)
    """How many threads of a group in ZooKeeper a run counts for."""
    member_id: str | None = Field(default=None, pattern=NAME)
    """What it is called among the members: of a coordinator a static member (group.instance.id).
    None: as its process is.
    """
    join_timeout_s: float = Field(default=60, gt=0, le=DAY_S)
    backoff_s: float = Field(default=2, gt=0, le=DAY_S)
    """Between tries to own a share in ZooKeeper."""
    session_timeout_s: float = Field(default=45, ge=1, le=3600)
    """After which a coordinator takes a member that says nothing for gone."""
    rebalance_timeout_s: float = Field(default=60, ge=1, le=3600)
    """How long a coordinator's group waits for a run to join again, or to let go of what is taken
    from it.
    """
    stay: Stay = Stay.RUN

    def membership_of(self, source: SourceSettings) -> Membership | None:
        """What a run is a member of; None: of nothing."""
        if self.mode is not OwnershipMode.JOIN:
            return None
        return self.membership or (
            Membership.ZOOKEEPER if source.bootstrap is None else Membership.COORDINATOR
        )

    def is_said(self, name: str) -> bool:
        """Whether the key has another value than it has where nobody says anything."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def refuse_for(self, source: SourceSettings) -> None:
        """Refuse what this source cannot have, and keys that mean nothing here. Raises ValueError."""
        membership = self.membership_of(source)
        self._refuse_hand_over(membership)
        if membership is Membership.ZOOKEEPER:
            self._refuse_in_zookeeper(source)
        elif membership is Membership.COORDINATOR:
            self._refuse_in_coordinator(source)

    def _refuse_hand_over(self, membership: Membership | None) -> None:
        if self.hand_over is HandOverAt.PLAN:
            return
        if membership is None:
            raise ValueError(
                f"hand_over: {self.hand_over.value} means nothing under mode: {self.mode.value}, whose runs are no members "
                "and move offsets behind the append anyhow: leave it out, or mode: join"
            )
        if self.stay is Stay.SHARE:
            raise ValueError(
                f"stay: share does not go with hand_over: {self.hand_over.value}: who has left commits nothing any more: "
                "stay: run"
            )

    def _refuse_in_zookeeper(self, source: SourceSettings) -> None:
        if source.bootstrap is not None:
            raise ValueError(
                "membership: zookeeper divides what is registered in ZooKeeper among the group's members: leave "
                "source.bootstrap out, or join the group that the brokers keep with membership: coordinator"
            )
        self._refuse_meaningless(
            _NOT_OF_ZOOKEEPER,
            Membership.ZOOKEEPER,
            "the session is that of zookeeper.session_timeout_s",
        )
        if len(self.strategy) > 1:
            raise ValueError(
                "strategy: members in ZooKeeper divide by one strategy, the same for all of them: name that one"
            )
        self._refuse_strategies(_OF_ZOOKEEPER, Membership.ZOOKEEPER)
        if source.dialect is BrokerFamily.JAFKA and self.strategy != (GroupStrategy.RANGE,):
            named = self.strategy[0].value
            raise ValueError(
                f"strategy: {named} does not go with source.dialect: jafka, whose consumers divide by range"
            )

    def _refuse_in_coordinator(self, source: SourceSettings) -> None:
        if source.dialect is BrokerFamily.JAFKA:
            raise ValueError(
                "membership: coordinator does not go with source.dialect: jafka, whose brokers keep no groups"
            )
        self._refuse_meaningless(
            _NOT_OF_COORDINATOR,
            Membership.COORDINATOR,
            "the coordinator gives each member one share",
        )
        self._refuse_strategies(_OF_COORDINATOR, Membership.COORDINATOR)
        if len(set(self.strategy)) < len(self.strategy):
            raise ValueError("strategy: names one of them more than once")
        if self.protocol is GroupProtocol.CONSUMER and self.is_said("strategy"):
            raise ValueError(
                "strategy means nothing under protocol: consumer, by which the coordinator divides as it likes: leave it out"
            )

    def _refuse_strategies(self, known: tuple[GroupStrategy, ...], membership: Membership) -> None:
        for one in self.strategy:
            if one not in known:
                raise ValueError(
                    f"strategy: {one.value} is none of membership: {membership.value}, which has "
                    f"{', '.join(each.value for each in known)}"
                )

    def _refuse_meaningless(self, names: tuple[str, ...], membership: Membership, why: str) -> None:
        for name in names:
            if self.is_said(name):
                raise ValueError(
                    f"{name} means nothing under membership: {membership.value}: {why}; leave it out"
                )


def refuse_other_storage(storage: OffsetsStorage, membership: Membership | None) -> None:
    """Refuse offsets that do not move in one step with a member's plan, or by its membership.
    Raises ValueError.
    """
    if membership is Membership.ZOOKEEPER and storage is not OffsetsStorage.ZOOKEEPER:
        raise ValueError(
            f"storage: {storage.value} does not go with ownership.mode: join among members in ZooKeeper: "
            "their owner nodes fence no commit in Kafka, so that plan and offsets could not move in one step"
        )
    if membership is Membership.COORDINATOR and storage is OffsetsStorage.ZOOKEEPER:
        raise ValueError(
            "storage: zookeeper does not go with ownership.mode: join among members in Kafka, who keep the group's offsets "
            "there: storage: kafka"
        )
    if membership is Membership.COORDINATOR and storage is OffsetsStorage.DUAL:
        raise ValueError(
            "storage: dual does not go with ownership.mode: join among members in Kafka: the larger of both would count, "
            "and no membership fences the one in ZooKeeper; storage: kafka"
        )
