"""Steps that a trainer counts from the start again in each epoch, as steps of the run."""

from __future__ import annotations


class EpochCount:
    """Adds the steps of the epochs before, as far as an epoch begins again with its steps.

    An epoch has as many as it says itself. Else it has as many as its last line says, and what regular lines leave out:
    after 0, 10, … 90 or 1, 11, … 91, the next epoch begins with the 101st step. A run that is resumed in an epoch that
    it had begun, and lines of it that come late, have the steps before that epoch; a run that begins where the first
    one did is another one.
    """

    def __init__(self) -> None:
        self._begins = (0, 0)  # the first epoch of this run and its first step
        self._before: dict[int, int] = {}  # epoch → steps before it
        self._latest = _Epoch(0, 0)

    @property
    def first_epoch(self) -> int:
        """The first epoch of this run."""
        return self._begins[0]

    @property
    def num_epochs(self) -> int:
        """The number of epochs that this run has begun."""
        return len(self._before)

    @property
    def before(self) -> int:
        """The steps before the latest epoch."""
        return self._before.get(self._latest.number, 0)

    def fits(self, total: float | None) -> bool:
        """True if this may be the number of steps in the latest epoch, if its last line is read."""
        return total is not None and self._latest.last <= total <= self._latest.last + self._latest.stride

    def step_of_run(self, epoch: int, step: int, total: int | None = None) -> int:
        """The step of the run that this step of an epoch is; `total` is what the epoch before had, if it says so."""
        if not self._before or (epoch, step) <= self._begins:
            self._begins, self._before, self._latest = (epoch, step), {epoch: 0}, _Epoch(epoch, step)
        elif epoch > self._latest.number:
            begins_again = step < self._latest.last or step == self._latest.first
            self._before[epoch] = self.before + ((total or self._latest.num_steps) if begins_again else 0)
            self._latest = _Epoch(epoch, step)
        elif epoch == self._latest.number:
            self._latest.go_on(step)
        return self._before.get(epoch, 0) + step


class _Epoch:
    """An epoch by the steps of its lines."""

    def __init__(self, number: int, first: int) -> None:
        self.number, self.first, self.last = number, first, first
        self._gaps = (1, 1)  # the first and the last between two lines

    def go_on(self, step: int) -> None:
        """Takes the step of the next line; one that comes late says nothing new."""
        if step > self.last:
            gap = step - self.last
            self._gaps = (gap if self.last == self.first else self._gaps[0], gap)
            self.last = step

    @property
    def stride(self) -> int:
        """Every how many steps it has a line; 1 where these are not regular."""
        return self._gaps[0] if self._gaps[0] == self._gaps[1] else 1

    @property
    def num_steps(self) -> int:
        """The number of its steps, by its lines."""
        return self.last + max(0, self.stride - self.first)
