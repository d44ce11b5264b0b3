"""What is solved: the model of one unit and what it may be able to do, spaces, penalties, schedules, units."""

from .model import (
    AbstractBatchSurrogate as AbstractBatchSurrogate,
)
from .model import (
    AbstractConcave as AbstractConcave,
)
from .model import (
    AbstractConjugate as AbstractConjugate,
)
from .model import (
    AbstractCostly as AbstractCostly,
)
from .model import (
    AbstractDifferentiated as AbstractDifferentiated,
)
from .model import (
    AbstractDiscrete as AbstractDiscrete,
)
from .model import (
    AbstractExponentialFamily as AbstractExponentialFamily,
)
from .model import (
    AbstractFactorised as AbstractFactorised,
)
from .model import (
    AbstractLikelihood as AbstractLikelihood,
)
from .model import (
    AbstractModel as AbstractModel,
)
from .model import (
    AbstractNonSmooth as AbstractNonSmooth,
)
from .model import (
    AbstractPointwise as AbstractPointwise,
)
from .model import (
    AbstractPredictive as AbstractPredictive,
)
from .model import (
    AbstractShared as AbstractShared,
)
from .model import (
    AbstractStructured as AbstractStructured,
)
from .model import (
    AbstractSurrogate as AbstractSurrogate,
)
from .model import (
    AbstractWeighted as AbstractWeighted,
)
from .penalty import L1 as L1
from .penalty import L2 as L2
from .penalty import AbstractPenalty as AbstractPenalty
from .penalty import ElasticNet as ElasticNet
from .penalty import Huber as Huber
from .penalty import NoPenalty as NoPenalty
from .schedule import AbstractSchedule as AbstractSchedule
from .schedule import Constant as Constant
from .schedule import ConstantThenDecay as ConstantThenDecay
from .schedule import Growth as Growth
from .schedule import Polynomial as Polynomial
from .schedule import check_schedules as check_schedules
from .space import AbstractSpace as AbstractSpace
from .space import Ball as Ball
from .space import Box as Box
from .space import Positive as Positive
from .space import PositiveDefinite as PositiveDefinite
from .space import Product as Product
from .space import Real as Real
from .space import Simplex as Simplex
from .units import one_unit as one_unit
from .units import pad_ragged as pad_ragged
