"""From a choice to placements: who goes where, who has to give way for it, and what becomes of what is left.

Winners take what is free first; only what does not fit there takes the place of gangs that lost. A loser whose devices
nobody came to use goes on as if nothing had happened. A winner whose ranks fit nowhere together takes its next way, or
clears a cell of gangs that are worth less; what then is still free goes to whoever can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from corral.model.offer import Bid
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from corral.policy.market.cells import Cells, Spot, Wanted
from corral.policy.market.clearing import Residents, clear_cells
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import KEEP, Columns, Form, Seated
from corral.policy.market.general import General
from corral.policy.market.ground import Ground
from corral.policy.market.limits import Limits, LimitsLeft
from corral.policy.market.precedence import make_room
from corral.policy.market.reserved import in_the_way, runs_as
from corral.policy.market.where import Where

CLEARINGS_MAX = 64
"""Gangs that may look for a cell to clear in one round, the most valuable first: each looks at every node."""


class Seating:
    """One round's placement. ``kept``, ``awards`` and ``evicted`` hold indices of contenders."""

    def __init__(
        self,
        ground: Ground,
        contenders: Sequence[Contender],
        columns: Columns,
        limits: Limits,
        now: float,
        config: SchedulingConfig,
    ) -> None:
        self.ground = ground
        self.contenders = contenders
        self.columns = columns
        self.config = config
        self.now = now
        self.cells = Cells(ground)
        self.general = General(ground, config)
        self.where = Where(ground, now, config)
        self.limits = LimitsLeft(limits, contenders)
        self.kept: set[int] = set()
        self.awards: dict[int, Seated] = {}
        self.displaced: list[int] = []
        self.evicted: list[int] = []
        """Those who have to give way to a reservation, whatever else happens."""
        self.losers: list[int] = []
        """Running gangs that lost on price, cheapest first; those still in ``kept`` go on because nobody came."""
        self.movers: set[int] = set()
        self.cleared_for: dict[int, int] = {}
        self.conceded = 0.0
        """The worth that priorities cost: what they displaced less what came for it."""
        ends = (columns.starts + columns.sizes).tolist()
        self.ways = dict(zip(columns.owner.tolist(), zip(columns.starts.tolist(), ends, strict=True), strict=True))
        self._form_of: list[int] = columns.form.tolist()
        self._failed = bytearray(len(columns.forms))

    # ---- the course of a round -------------------------------------------------------------------------------------

    def seat(self, choice: Iterable[int]) -> None:
        """Seat the choice (a way per owner of the columns, -1: none) and all that follows from it."""
        starts = self._split(choice)
        self._start_reserved()
        left = self._start_in_free(starts)
        for index in self.displaced:
            self.cells.release(self.ground.footprints[self.contenders[index].key])
        left = self._start_in_free(left)
        general = [(index, way) for index, way in starts if not self._form(way).plain and index not in self.awards]
        # What cells do not take is placed later, but its part of a limit is its own now.
        for index, way in general:
            self.limits.take(index, self._form(way).shape)
        self._take_back()
        self._clear(self._start_otherwise([index for index, _ in left]))
        for index, way in general:
            self.limits.put_back(index, self._form(way).shape)
            if index not in self.awards and index not in self.kept:
                self._start_general(index, way, evict=True)
        self._take_back()
        make_room(self)
        self.fill()

    def _split(self, choice: Iterable[int]) -> list[tuple[int, int]]:
        """Note who goes on and who lost; return the (contender, way) that start, in the order of placement."""
        starts: list[tuple[int, int]] = []
        taken = set()
        for job, way in zip(self.columns.owner.tolist(), choice, strict=True):
            if way >= 0 and self.columns.bid[way] == KEEP:
                self.kept.add(job)
            elif way >= 0:
                starts.append((job, int(way)))
                taken.add(job)
        for index, contender in enumerate(self.contenders):
            if contender.holding is None:
                break
            if index not in self.kept:
                self.displaced.append(index)
                if index in taken:
                    self.movers.add(index)
        self.displaced.sort(key=lambda i: (self.stake(i) / self.contenders[i].size, self.contenders[i].key))
        for index in self.kept:
            self.limits.hold(index)
        starts.sort(key=self._order)
        return starts

    def _form(self, way: int) -> Form:
        return self.columns.forms[self._form_of[way]]

    def stake(self, index: int) -> float:
        """Return what going on is worth to a running gang, with what giving way would cost."""
        contender = self.contenders[index]
        return contender.kept_value + contender.lost_value(self.config)

    def _order(self, start: tuple[int, int]) -> tuple[bool, int, int, float, int]:
        index, way = start
        form = self._form(way)
        each, ranks = form.shape.demand.gpus_whole, form.shape.ranks
        cell = each * ranks if form.together else each
        contender = self.contenders[index]
        return (not contender.urgent, -cell, -each * ranks, -contender.worth, contender.order)

    def _start_reserved(self) -> None:
        """Start gangs on their reservations where they are worth more than who is in the way."""
        if not self.ground.kept:
            return
        for index, contender in enumerate(self.contenders):
            placements = self.ground.kept.get(contender.key)
            if not placements or contender.holding is not None:
                continue
            begin, end = self.ways.get(index, (0, 0))
            ways = [w for w in range(begin, end) if runs_as(self.columns.forms[self._form_of[w]], placements)]
            gone = in_the_way(placements, self.ground, self.cells, self.contenders, self.kept)
            if not ways or gone is None:
                continue
            way = max(ways, key=lambda w: float(self.columns.value[w]))
            form = self.columns.forms[self._form_of[way]]
            if sum(self.stake(i) for i in gone) >= self.columns.value[way]:
                continue
            for loser in gone:
                self.kept.discard(loser)
                self.limits.give_back(loser)
            if not self.limits.allow(index, form.shape):
                for loser in gone:
                    self._go_on(loser)
                continue
            for loser in gone:
                self.cells.release(self.ground.footprints[self.contenders[loser].key])
                self.cleared_for[loser] = index
                self.evicted.append(loser)
            self.awards[index] = Seated(
                int(self.columns.bid[way]), form, float(self.columns.value[way]), tuple(placements)
            )
            self.limits.take(index, form.shape)
            self.general.on_reservation(contender.key)

    def _start_in_free(self, starts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Seat what fits; return what does not. What is alike and did not fit is not tried again."""
        left: list[tuple[int, int]] = []
        failed: set[tuple[object, ...]] = set()
        for index, way in starts:
            if index in self.awards:
                continue
            form = self._form(way)
            if not form.plain:
                continue
            wanted = self.where.wanted(self.contenders[index], form, int(self.columns.bid[way]))
            if (wanted.kind not in failed or wanted.cost is not None) and self._try(index, way, wanted):
                continue
            failed.add(wanted.kind)
            left.append((index, way))
        return left

    def _try(self, index: int, way: int, wanted: Wanted) -> bool:
        if not self.limits.allow(index, wanted.shape):
            return False
        spots = self.cells.find(wanted)
        if spots is None:
            return False
        self._commit(index, way, spots)
        return True

    def _commit(self, index: int, way: int, spots: list[Spot]) -> None:
        form = self._form(way)
        self.cells.take(spots, form.shape)
        placements = self.ground.placements(spots, form.shape)
        self.awards[index] = Seated(int(self.columns.bid[way]), form, float(self.columns.value[way]), placements)
        self.limits.take(index, form.shape)
        self.where.note(self.contenders[index], placements)
        self.general.take(placements)

    def _take_back(self) -> None:
        """Let losers go on whose devices nobody uses, the most valuable first."""
        left = []
        self.losers.extend(i for i in self.displaced if i not in self.awards and i not in self.losers)
        for index in reversed(self.displaced):
            if index in self.awards:
                left.append(index)
                continue
            if not self.withdraw(index):
                left.append(index)
        self.displaced = left

    def _go_on(self, index: int) -> None:
        self.kept.add(index)
        self.movers.discard(index)
        self.limits.hold(index)

    def _start_otherwise(self, left: Sequence[int]) -> list[int]:
        """Try the other ways of winners that did not fit; return those without any."""
        still = []
        for index in left:
            if index in self.kept or index in self.awards:
                continue
            if not self.start_somehow(index):
                still.append(index)
        return still

    def start_somehow(self, index: int) -> bool:
        """Start a contender in the most valuable of its ways that fits."""
        begin, end = self.ways.get(index, (0, 0))
        forms, failed = self._form_of, self._failed
        ways = [way for way in range(begin, end) if not failed[forms[way]] and self.columns.bid[way] != KEEP]
        if len(ways) > 1:
            ways.sort(key=lambda way: -self.columns.value[way])
        for way in ways:
            number = forms[way]
            if failed[number]:
                continue
            form = self.columns.forms[number]
            if not form.plain:
                if self._start_general(index, way):
                    return True
                alike = not self.where.without(self.contenders[index])
            else:
                wanted = self.where.wanted(self.contenders[index], form, int(self.columns.bid[way]))
                if self._try(index, way, wanted):
                    return True
                alike = not wanted.avoid
            if alike and not self.limits.of[index]:
                failed[number] = 1
        return False

    def try_again(self) -> None:
        """Forget which forms did not fit: something came free."""
        self._failed = bytearray(len(self._failed))

    def _rule_out(self) -> None:
        """Note forms that need more devices than are free of their model: nobody needs to try them."""
        free = self.cells.free_by_model()
        for number, form in enumerate(self.columns.forms):
            if form.footprint is not None or (
                form.plain and form.shape.ranks * form.shape.demand.gpus_whole > free[form.model or 0]
            ):
                self._failed[number] = 1

    # ---- clearing --------------------------------------------------------------------------------------------------

    def _clear(self, left: Sequence[int]) -> None:
        """Let the most valuable winners that fit nowhere displace what is worth less, cell by cell."""
        if not left:
            return
        residents = Residents(self.ground, self.contenders, self.kept)
        for index in sorted(left, key=lambda i: (-self.contenders[i].worth, self.contenders[i].order))[:CLEARINGS_MAX]:
            begin, end = self.ways.get(index, (0, 0))
            for way in (begin + np.argsort(-self.columns.value[begin:end], kind="stable")[:2]).tolist():
                form = self._form(way)
                if self.columns.bid[way] == KEEP or not form.plain:
                    continue
                victims = clear_cells(form, float(self.columns.value[way]), self.cells, residents, self.stake)
                if victims and self._clear_for(index, way, form, victims, residents):
                    break

    def _clear_for(self, index: int, way: int, form: Form, victims: list[int], residents: Residents) -> bool:
        for victim in victims:
            self.release(victim)
        done = self._try(index, way, self.where.wanted(self.contenders[index], form, int(self.columns.bid[way])))
        for victim in victims:
            if not self.withdraw(victim):
                self.displaced.append(victim)
                residents.remove(victim)
                self.cleared_for[victim] = index
                self.try_again()
        return done

    # ---- shares, CPUs, and what is left ----------------------------------------------------------------------------

    def _start_general(self, index: int, way: int, *, evict: bool = False) -> bool:
        contender = self.contenders[index]
        form = self._form(way)
        if not self.limits.allow(index, form.shape):
            return False
        self.start_trial()
        bid = contender.bids[int(self.columns.bid[way])]
        found = self._place(contender, bid, form)
        if found is None and evict:
            found = self._evict_for(index, bid, form)
        if found is None:
            return False
        self.awards[index] = Seated(int(self.columns.bid[way]), form, float(self.columns.value[way]), found)
        self.limits.take(index, form.shape)
        self.where.note(contender, found)
        self.general.take(found)
        self.cells.take_placements(found)
        return True

    def start_trial(self) -> None:
        """Let all rules of placement know what is released and taken from here on."""
        if not self.general.started:
            gone = [self._placements(i) for i in (*self.displaced, *self.evicted)]
            self.general.start(gone, [won.placements for won in self.awards.values()])

    def _place(self, contender: Contender, bid: Bid, form: Form) -> tuple[Placement, ...] | None:
        return self.general.place(bid, form, self.where.without(contender), self.where.dearer(contender))

    def _evict_for(self, index: int, bid: Bid, form: Form) -> tuple[Placement, ...] | None:
        """Let losers give way, cheapest first, until ``form`` fits; those who turn out not to be in the way go on."""
        tried: list[int] = []
        found = None
        for loser in self.losers:
            if loser not in self.kept:
                continue
            self.release(loser)
            tried.append(loser)
            found = self._place(self.contenders[index], bid, form)
            if found is not None:
                self.general.take(found)
                break
        for loser in reversed(tried):
            if not self.withdraw(loser):
                self.displaced.append(loser)
                self.cleared_for[loser] = index
        if found is not None:
            self.general.release(found)
        return found

    def _placements(self, index: int) -> tuple[Placement, ...]:
        holding = self.contenders[index].holding
        assert holding is not None
        return holding.placements

    def release(self, index: int) -> None:
        """Let a running gang give way."""
        self.cells.release(self.ground.footprints[self.contenders[index].key])
        self.general.release(self._placements(index))
        self.kept.discard(index)
        self.limits.give_back(index)

    def withdraw(self, index: int) -> bool:
        """Let a gang go on after all; return whether its devices are unused still."""
        if not self.limits.allows_keeping(index):
            return False
        if self.general.started and not self.general.withdraw(self._placements(index)):
            return False
        if not self.cells.withdraw(self.ground.footprints[self.contenders[index].key]):
            self.general.release(self._placements(index))
            return False
        self._go_on(index)
        return True

    def idle(self) -> list[int]:
        """Return who neither goes on nor starts, though it could in an empty pool."""
        return [
            i for i in range(len(self.contenders)) if i not in self.kept and i not in self.awards and i in self.ways
        ]

    def fill(self) -> None:
        """Give what is left to whoever can use it, by worth per device. Nothing that fits is left out."""
        waiting = self.idle()
        self._rule_out()
        if all(self._failed):
            return
        of = self.contenders
        waiting.sort(key=lambda i: (not of[i].urgent, -of[i].worth / of[i].size, i))
        for index in waiting:
            self.start_somehow(index)
