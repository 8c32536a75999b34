from envs.waterworld_physics import *
