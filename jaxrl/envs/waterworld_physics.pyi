from envs.waterworld_physics import *
from ...envs.waterworld_physics import *
