from seatrial.api import AxisVerdict as AxisVerdict
from seatrial.api import Check as Check
from seatrial.api import Comparison as Comparison
from seatrial.api import Findings as Findings
from seatrial.api import History as History
from seatrial.api import InputError as InputError
from seatrial.api import LaunchError as LaunchError
from seatrial.api import Mark as Mark
from seatrial.api import Metrics as Metrics
from seatrial.api import PastRun as PastRun
from seatrial.api import PlannedRun as PlannedRun
from seatrial.api import Problem as Problem
from seatrial.api import Run as Run
from seatrial.api import RunSpec as RunSpec
from seatrial.api import SeatrialError as SeatrialError
from seatrial.api import Table as Table
from seatrial.api import Verdict as Verdict
from seatrial.api import Where as Where
from seatrial.api import check as check
from seatrial.api import compare as compare
from seatrial.api import history as history
from seatrial.api import judge as judge
from seatrial.api import load_run as load_run
from seatrial.api import plan as plan
from seatrial.api import run as run

__version__: str
