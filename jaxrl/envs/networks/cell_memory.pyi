from envs.networks.cell_memory import *
from ....envs.networks.cell_memory import *
